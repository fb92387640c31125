"""The reader of answers: whole ones in any portions, broken ones at any byte, too long ones, and what follows an answer."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.client.answer_reader import HEAD_BYTES_MAX, AnswerReader, BrokenAnswerError
from multisched.model.wire import Response

BYTES_MAX = 1_000_000
CREATED = b'HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 12\r\nX-A: b\r\n\r\n{"kind":"x"}'
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\nc;x=y\r\n to chunks!\n\r\n0\r\nX-Trailer: t\r\n\r\n"
)
EARLY = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
FRAMED = {
    "length": (CREATED, 201, b'{"kind":"x"}'),
    "chunks": (CHUNKED, 200, b"hello to chunks!\n"),
    "interim answers": (EARLY + CREATED, 201, b'{"kind":"x"}'),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b""),
    "empty": (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", 500, b""),
}
ANSWERS = pytest.mark.parametrize(("answer", "status", "body"), FRAMED.values(), ids=FRAMED.keys())


def read(*portions: bytes) -> AnswerReader:
    reader = AnswerReader(BYTES_MAX)
    for portion in portions:
        reader.feed(portion)
    return reader


@given(st.sampled_from(list(FRAMED.values())), st.data())
def test_response_is_parsed_the_same_in_any_chunks(framed: tuple[bytes, int, bytes], data: st.DataObject) -> None:
    answer, status, body = framed
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    portions = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    reader = read(*portions)
    response = response_of(reader)
    assert response is not None
    assert (response.status, response.body) == (status, body)
    assert reader.may_be_followed
    assert response == response_of(read(answer))


def response_of(reader: AnswerReader) -> Response | None:
    return reader.responses[0] if reader.is_complete else None


def feed_often(reader: AnswerReader, more: bytes, times: int) -> None:
    for _ in range(times):
        reader.feed(more)


@ANSWERS
def test_response_cut_at_any_byte_is_incomplete(answer: bytes, status: int, body: bytes) -> None:
    for length in range(len(answer)):
        reader = read(answer[:length])
        assert response_of(reader) is None, answer[:length]
        assert reader.close() is None, answer[:length]


def test_headers_are_lower_cased_without_those_of_interim_responses_and_trailers() -> None:
    created, chunked = response_of(read(EARLY + CREATED)), response_of(read(CHUNKED))
    assert created is not None
    assert created.headers == {"content-type": "application/json", "content-length": "12", "x-a": "b"}
    assert chunked is not None
    assert chunked.headers == {"transfer-encoding": "chunked"}


def test_one_reader_parses_many_responses() -> None:
    reader = AnswerReader(BYTES_MAX)
    for answer, status, body in [*FRAMED.values()] * 3:
        reader.begin()
        assert response_of(reader) is None
        assert reader.bytes_read == 0
        reader.feed(answer)
        response = response_of(reader)
        assert response is not None
        assert (response.status, response.body) == (status, body)
        assert reader.may_be_followed


@given(
    st.lists(st.sampled_from(list(FRAMED.values())), min_size=1, max_size=5),
    st.sampled_from([b"", b"x", CREATED]),
    st.data(),
)
def test_expected_responses_are_parsed_in_any_chunks(
    framed: list[tuple[bytes, int, bytes]], surplus: bytes, data: st.DataObject
) -> None:
    answers = b"".join(answer for answer, _, _ in framed)
    sent = (answers + surplus)[: data.draw(st.integers(0, len(answers + surplus)))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    reader = AnswerReader(BYTES_MAX)
    reader.expected = len(framed)
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        reader.feed(sent[start:end])
    ends = itertools.accumulate(len(answer) for answer, _, _ in framed)
    whole = sum(end <= len(sent) for end in ends)
    assert [(one.status, one.body) for one in reader.responses] == [
        (status, body) for _, status, body in framed[:whole]
    ]
    assert reader.is_complete is (whole == len(framed))
    if reader.is_complete:
        assert reader.may_be_followed is (len(sent) == len(answers))


def test_each_of_several_responses_has_the_whole_size_limit() -> None:
    body = b"x" * BYTES_MAX
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    reader = AnswerReader(BYTES_MAX)
    reader.expected = 3
    for _ in range(2):
        reader.feed(whole[:1_000])
        reader.feed(whole[1_000:])
    assert len(reader.responses) == 2
    with pytest.raises(BrokenAnswerError):
        reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (BYTES_MAX + 1))


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\nX: y\r\n\r\n"])
def test_response_without_framing_ends_with_its_connection(head: bytes) -> None:
    for body in (b"", b"x", b"HTTP/1.1 200 OK\r\n\r\n"):
        reader = read(head + body)
        assert response_of(reader) is None
        response = reader.close()
        assert response is not None
        assert (response.status, response.body) == (200, body)
        assert not reader.may_be_followed
    assert read(head[:-1]).close() is None


@pytest.mark.parametrize("extra", [b"x", b"\0", b"HTTP/1.1 200 OK\r\n", CREATED, b"\r\n" + CREATED, b"SSH-2.0\r\n"])
@ANSWERS
def test_bytes_after_a_response_bar_the_connection_from_reuse(
    answer: bytes, status: int, body: bytes, extra: bytes
) -> None:
    reader = read(answer + extra)
    response = response_of(reader)
    assert response is not None
    assert (response.status, response.body) == (status, body)
    assert response_of(reader) == response_of(read(answer))
    assert not reader.may_be_followed


@pytest.mark.parametrize(
    ("head", "may_be_followed"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive, CLOSE\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_response_headers_decide_keep_alive(head: bytes, may_be_followed: bool) -> None:
    reader = read(head + b"Content-Length: 1\r\n\r\nx")
    response = response_of(reader)
    assert response == Response(200, b"x", response.headers if response else {})
    assert reader.may_be_followed is may_be_followed


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"<html>",
        b"GET / HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX Y: z\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n folded: b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxyz\r\n",
    ],
)
def test_invalid_response_is_refused(answer: bytes) -> None:
    with pytest.raises(BrokenAnswerError):
        read(answer)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_at_worst_refused(noise: bytes) -> None:
    reader = AnswerReader(BYTES_MAX)
    try:
        reader.feed(b"HTTP/1.1 200 OK\r\n" + noise)
        reader.feed(noise)
    except BrokenAnswerError:
        assert response_of(reader) is None
        assert not reader.may_be_followed


@pytest.mark.parametrize(
    ("start", "more"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nX: ", b"a" * 1000, id="a header without end"),
        pytest.param(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 200, id="headers without end"),
        pytest.param(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 40, id="interim answers without end"),
        pytest.param(b"", b"\r\n" * 500, id="blank lines without end"),
    ],
)
def test_response_head_without_an_end_is_refused_at_its_limit(start: bytes, more: bytes) -> None:
    reader = read(start)
    with pytest.raises(BrokenAnswerError, match=f"exceeds {HEAD_BYTES_MAX} bytes"):
        feed_often(reader, more, 2 * HEAD_BYTES_MAX // len(more))
    assert reader.bytes_read <= HEAD_BYTES_MAX + len(more)


@pytest.mark.parametrize(
    ("start", "more"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", b"a" * 10_000, id="a body to the end of the connection"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 2000, id="chunks"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a" * 10_000, id="an extension of a chunk"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 2000, id="trailers without end"
        ),
    ],
)
def test_response_body_without_an_end_is_refused_at_its_limit(start: bytes, more: bytes) -> None:
    reader = read(start)
    with pytest.raises(BrokenAnswerError, match="exceeds 1000000 bytes"):
        feed_often(reader, more, 1000)
    assert reader.bytes_read <= BYTES_MAX + HEAD_BYTES_MAX + len(more)


def test_response_with_a_too_large_length_is_refused_at_its_head() -> None:
    with pytest.raises(BrokenAnswerError, match="exceeds 1000000 bytes"):
        read(b"HTTP/1.1 200 OK\r\nContent-Length: 1000001\r\n\r\n")


TEN = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"


def test_response_of_exactly_the_limit_is_accepted() -> None:
    reader = AnswerReader(10)
    reader.feed(TEN + b"0123456789")
    response = response_of(reader)
    assert response is not None
    assert response.body == b"0123456789"


@pytest.mark.parametrize(
    ("start", "bound", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", HEAD_BYTES_MAX, "the head of the answer exceeds 262144 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n", 10 + HEAD_BYTES_MAX, "the answer exceeds 10 bytes"),
    ],
    ids=["head", "body"],
)
def test_response_without_a_length_is_refused_at_its_limit(start: bytes, bound: int, words: str) -> None:
    reader = AnswerReader(10)
    reader.feed(start)
    reader.feed(b"x" * (bound - len(start)))
    with pytest.raises(BrokenAnswerError, match=f"^{words}$"):
        reader.feed(b"x")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "HttpParserError "),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", "HttpParserUpgrade "),
        (TEN.replace(b"10", b"11"), "the answer exceeds 10 bytes"),
    ],
)
def test_invalid_response_has_the_parser_message(answer: bytes, words: str) -> None:
    with pytest.raises(BrokenAnswerError) as refused:
        AnswerReader(10).feed(answer)
    assert str(refused.value).startswith(words)


def test_discarded_reader_ignores_data() -> None:
    reader = read(CREATED[:20])
    reader.discard()
    reader.feed(CREATED[20:])
    assert response_of(reader) is None
