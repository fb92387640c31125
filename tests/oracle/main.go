// Command oracle answers scheduling problems with kube-scheduler's own code.
//
//	oracle < problems.jsonl > answers.jsonl
//
// It reads one problem per line and writes one answer per line, in the order of the problems and in the form that
// tests/conformance/README.md describes. Each problem gets a scheduling framework of its own: the in-tree plugins of the
// Kubernetes release this module requires, one node at a time, the default profile unless the problem carries a
// KubeSchedulerConfiguration. Nothing is written to any API server; there is none.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/go-logr/logr"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// lineMax bounds one problem in bytes: a hundred nodes with a thousand pods take two million.
const lineMax = 256 << 20

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

// run answers every problem of in. The first problem that cannot be read or built ends it: an oracle must not guess.
func run(in io.Reader, out io.Writer) error {
	// Deletions are to be counted, not sent later, and each pod is to be looked at for itself.
	gates := map[string]bool{"SchedulerAsyncPreemption": false, "OpportunisticBatching": false, "SchedulerAsyncAPICalls": false}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
		return err
	}
	metrics.Register()
	written := bufio.NewWriter(out)
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 1<<20), lineMax)
	for number := 1; lines.Scan(); number++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		line, err := answerLine(lines.Bytes())
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		if _, err := written.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return written.Flush()
}

func answerLine(line []byte) ([]byte, error) {
	problem, err := readProblem(line)
	if err != nil {
		return nil, err
	}
	// Caches and recorders of one problem end with its context.
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	defer cancel()
	cluster, err := newCluster(ctx, problem)
	if err != nil {
		return nil, fmt.Errorf("problem %s: %w", problem.ID, err)
	}
	answer, err := cluster.answer(ctx, problem)
	if err != nil {
		return nil, fmt.Errorf("problem %s: %w", problem.ID, err)
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(answer); err != nil {
		return nil, err
	}
	return bytes.TrimRight(text.Bytes(), "\n"), nil
}
