package main

import (
	"context"
	"sort"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
)

// tieDraws is how often the choice between candidates is made again to see every node that chance may take: of eight
// equal ones, the chance to miss one is below 1e-28.
const tieDraws = 512

// preemptionRecord listens to DefaultPreemption: which victims each node would need, and which nodes are equally good.
type preemptionRecord struct {
	preemption.Interface
	evaluator *preemption.Evaluator
	victims   map[string]*extenderv1.Victims
}

func newPreemptionRecord() *preemptionRecord {
	return &preemptionRecord{victims: map[string]*extenderv1.Victims{}}
}

// watching makes the plugin as upstream does, puts the record between it and its evaluator, and deletes nobody.
func (r *preemptionRecord) watching(factory frameworkruntime.PluginFactory) frameworkruntime.PluginFactory {
	return func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		made, err := factory(ctx, args, handle)
		if err != nil {
			return nil, err
		}
		plugin := made.(*defaultpreemption.DefaultPreemption)
		plugin.Executor.PreemptPod = func(
			context.Context, preemption.Candidate, preemption.ExecutorPreemptor, *v1.Pod, string,
		) error {
			return nil
		}
		r.Interface, r.evaluator = plugin, plugin.Evaluator
		plugin.Evaluator.Interface = r
		return plugin, nil
	}
}

// SelectVictimsOnNode is the plugin's own, remembered. Parallelism is one, so the map needs no lock.
func (r *preemptionRecord) SelectVictimsOnNode(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, budgets []*policyv1.PodDisruptionBudget,
) ([]*v1.Pod, int, *fwk.Status) {
	pods, violations, status := r.Interface.SelectVictimsOnNode(ctx, state, pod, node, budgets)
	if status.IsSuccess() && len(pods) > 0 {
		r.victims[node.Node().Name] = &extenderv1.Victims{Pods: pods, NumPDBViolations: int64(violations)}
	}
	return pods, violations, status
}

// choices are the nodes that upstream's choice may fall on, by name.
func (r *preemptionRecord) choices(ctx context.Context) []string {
	candidates := make([]preemption.Candidate, 0, len(r.victims))
	for name, victims := range r.victims {
		candidates = append(candidates, chosenNode{name, victims})
	}
	seen := map[string]bool{}
	for range tieDraws {
		seen[r.evaluator.SelectCandidate(ctx, candidates).Name()] = true
	}
	found := make([]string, 0, len(seen))
	for name := range seen {
		found = append(found, name)
	}
	sort.Strings(found)
	return found
}

type chosenNode struct {
	name    string
	victims *extenderv1.Victims
}

func (c chosenNode) Name() string                 { return c.name }
func (c chosenNode) Victims() *extenderv1.Victims { return c.victims }
