"""kube-scheduler's rules once more, as plainly as they can be said: one node at a time, over the JSON itself.

Nothing here is fast, shared with the product, or read by it. The vectorised plugins are tested against this
(tests/conformance/test_plugins_equal_reference.py), and this against what kube-scheduler answered (test_reference.py
beside it), so that a mistake has to be made twice in two different ways to stay unseen.
"""
