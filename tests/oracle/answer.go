package main

import (
	"context"
	"fmt"
	"sort"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// answer is one line of an answers file; tests/conformance/README.md says what each field means.
type answer struct {
	Feasible       []string                    `json:"feasible"`
	Error          string                      `json:"error,omitempty"`
	FitError       string                      `json:"fitError,omitempty"`
	ID             string                      `json:"id"`
	PreFilter      *refusal                    `json:"preFilter,omitempty"`
	PreFilterNodes []string                    `json:"preFilterNodes,omitempty"`
	Preemptions    []preemptionChoice          `json:"preemptions,omitempty"`
	Rejected       map[string]*refusal         `json:"rejected"`
	Scores         map[string]map[string]int64 `json:"scores,omitempty"`
	Total          map[string]int64            `json:"total,omitempty"`
}

type refusal struct {
	Code    string   `json:"code"`
	Plugin  string   `json:"plugin"`
	Reasons []string `json:"reasons"`
}

type preemptionChoice struct {
	NominatedNode string   `json:"nominatedNode"`
	Victims       []string `json:"victims"`
}

func newRefusal(status *fwk.Status) *refusal {
	return &refusal{Code: status.Code().String(), Plugin: status.Plugin(), Reasons: status.Reasons()}
}

// answer runs the extension points that decide, as kube-scheduler's schedulePod does, but on every node and with scores
// even where one node is left. A failure of a plugin is an answer too; errors are those of the oracle.
func (c *cluster) answer(ctx context.Context, p *problem) (*answer, error) {
	given := &answer{ID: p.ID, Feasible: []string{}, Rejected: map[string]*refusal{}}
	state := framework.NewCycleState()
	diagnosis := framework.Diagnosis{NodeToStatus: framework.NewDefaultNodeToStatus()}
	narrowed, status, plugins := c.framework.RunPreFilterPlugins(ctx, state, p.Pod)
	if !status.IsSuccess() {
		if !status.IsRejected() {
			given.Error = status.Message()
			return given, nil
		}
		given.PreFilter = newRefusal(status)
		diagnosis.NodeToStatus.SetAbsentNodesStatus(status)
		diagnosis.PreFilterMsg = status.Message()
		return given, c.explain(ctx, p, state, diagnosis, given)
	}
	nodes, err := c.snapshot.NodeInfos().List()
	if err != nil {
		return nil, err
	}
	if !narrowed.AllNodes() {
		given.PreFilterNodes = sorted(narrowed.NodeNames.UnsortedList())
		nodes = only(nodes, narrowed.NodeNames.Has)
		outside := fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", sorted(plugins.UnsortedList()))
		diagnosis.NodeToStatus.SetAbsentNodesStatus(fwk.NewStatus(fwk.UnschedulableAndUnresolvable, outside))
	}
	feasible, failed := c.filter(ctx, p, state, nodes, diagnosis, given)
	switch {
	case failed != nil:
		given.Error = failed.Message()
		return given, nil
	case len(feasible) == 0:
		return given, c.explain(ctx, p, state, diagnosis, given)
	}
	return given, c.score(ctx, p, state, feasible, given)
}

// filter asks about every node, pods nominated there included, and returns those that pass, or the first failure.
func (c *cluster) filter(
	ctx context.Context, p *problem, state fwk.CycleState, nodes []fwk.NodeInfo, diagnosis framework.Diagnosis, given *answer,
) ([]fwk.NodeInfo, *fwk.Status) {
	var feasible []fwk.NodeInfo
	for _, node := range nodes {
		name := node.Node().Name
		status := c.framework.RunFilterPluginsWithNominatedPods(ctx, state, p.Pod, node)
		switch {
		case status.IsSuccess():
			feasible = append(feasible, node)
			given.Feasible = append(given.Feasible, name)
		case status.IsRejected():
			diagnosis.NodeToStatus.Set(name, status)
			given.Rejected[name] = newRefusal(status)
		default:
			return nil, status
		}
	}
	sort.Strings(given.Feasible)
	return feasible, nil
}

// explain runs PostFilter and puts together what the user of a pod that fits nowhere is told.
func (c *cluster) explain(
	ctx context.Context, p *problem, state fwk.CycleState, diagnosis framework.Diagnosis, given *answer,
) error {
	all, err := c.snapshot.NodeInfos().List()
	if err != nil {
		return err
	}
	result, status := c.framework.RunPostFilterPlugins(ctx, state, p.Pod, diagnosis.NodeToStatus)
	diagnosis.PostFilterMsg = status.Message()
	fitError := framework.FitError{Pod: p.Pod, NumAllNodes: len(all), Diagnosis: diagnosis}
	given.FitError = fitError.Error()
	given.Preemptions = []preemptionChoice{{NominatedNode: "", Victims: []string{}}}
	if !status.IsSuccess() || result == nil || result.NominatingInfo == nil || result.NominatedNodeName == "" {
		return nil
	}
	given.Preemptions = nil
	for _, node := range c.preempted.choices(ctx) {
		given.Preemptions = append(given.Preemptions, preemptionChoice{node, c.preempted.victimsOn(node)})
	}
	return nil
}

// score runs PreScore and Score over the feasible nodes; scores are weighted.
func (c *cluster) score(
	ctx context.Context, p *problem, state fwk.CycleState, feasible []fwk.NodeInfo, given *answer,
) error {
	if status := c.framework.RunPreScorePlugins(ctx, state, p.Pod, feasible); !status.IsSuccess() {
		given.Error = status.Message()
		return nil
	}
	scored, status := c.framework.RunScorePlugins(ctx, state, p.Pod, feasible)
	if !status.IsSuccess() {
		given.Error = status.Message()
		return nil
	}
	given.Scores, given.Total = map[string]map[string]int64{}, map[string]int64{}
	for _, node := range scored {
		given.Total[node.Name] = node.TotalScore
		for _, one := range node.Scores {
			if one.Name == names.DynamicResources {
				continue // gives 0 to a pod without claims on devices, and no problem has those
			}
			if given.Scores[one.Name] == nil {
				given.Scores[one.Name] = map[string]int64{}
			}
			given.Scores[one.Name][node.Name] = one.Score
		}
	}
	return nil
}

func (r *preemptionRecord) victimsOn(node string) []string {
	victims := []string{}
	for _, pod := range r.victims[node].Pods {
		victims = append(victims, pod.Namespace+"/"+pod.Name)
	}
	return sorted(victims)
}

func only(nodes []fwk.NodeInfo, has func(string) bool) []fwk.NodeInfo {
	var kept []fwk.NodeInfo
	for _, node := range nodes {
		if has(node.Node().Name) {
			kept = append(kept, node)
		}
	}
	return kept
}

func sorted(texts []string) []string {
	sort.Strings(texts)
	return texts
}
