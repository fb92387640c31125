package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// problem is one line of a problems file: a cluster, and a pod to be scheduled in it.
type problem struct {
	ID     string `json:"id"`
	Family string `json:"family"`

	Namespaces             []*v1.Namespace                 `json:"namespaces"`
	Nodes                  []*v1.Node                      `json:"nodes"`
	Pods                   []*v1.Pod                       `json:"pods"`
	Services               []*v1.Service                   `json:"services"`
	ReplicationControllers []*v1.ReplicationController     `json:"replicationControllers"`
	ReplicaSets            []*appsv1.ReplicaSet            `json:"replicaSets"`
	StatefulSets           []*appsv1.StatefulSet           `json:"statefulSets"`
	Budgets                []*policyv1.PodDisruptionBudget `json:"pdbs"`
	Volumes                []*v1.PersistentVolume          `json:"pvs"`
	Claims                 []*v1.PersistentVolumeClaim     `json:"pvcs"`
	StorageClasses         []*storagev1.StorageClass       `json:"storageClasses"`
	CSINodes               []*storagev1.CSINode            `json:"csiNodes"`
	CSIDrivers             []*storagev1.CSIDriver          `json:"csiDrivers"`
	CSIStorageCapacities   []*storagev1.CSIStorageCapacity `json:"csiStorageCapacities"`
	VolumeAttachments      []*storagev1.VolumeAttachment   `json:"volumeAttachments"`

	// Profile is a KubeSchedulerConfiguration; its first profile counts.
	Profile json.RawMessage `json:"profile"`
	Pod     *v1.Pod         `json:"pod"`
}

// readProblem refuses fields it does not know: a misspelt one would change the question and not be seen.
func readProblem(line []byte) (*problem, error) {
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	read := &problem{}
	if err := decoder.Decode(read); err != nil {
		return nil, fmt.Errorf("reading problem %q: %w", read.ID, err)
	}
	if read.Pod == nil {
		return nil, fmt.Errorf("problem %q has no pod", read.ID)
	}
	return read, nil
}

// profile is the problem's own, or kube-scheduler's default, so set that preemption looks at all nodes.
func (p *problem) profile() (*config.KubeSchedulerProfile, error) {
	configuration, err := p.configuration()
	if err != nil {
		return nil, err
	}
	chosen := configuration.Profiles[0]
	for _, one := range chosen.PluginConfig {
		if args, ok := one.Args.(*config.DefaultPreemptionArgs); ok && one.Name == names.DefaultPreemption {
			args.MinCandidateNodesPercentage = 100
		}
	}
	return &chosen, nil
}

func (p *problem) configuration() (*config.KubeSchedulerConfiguration, error) {
	if len(p.Profile) == 0 || string(p.Profile) == "null" {
		return latest.Default()
	}
	object, kind, err := scheme.Codecs.UniversalDecoder().Decode(p.Profile, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("reading its profile: %w", err)
	}
	read, ok := object.(*config.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("its profile is a %s, not a KubeSchedulerConfiguration", kind)
	}
	read.APIVersion = kind.GroupVersion().String()
	if err := validation.ValidateKubeSchedulerConfiguration(read); err != nil {
		return nil, fmt.Errorf("its profile: %w", err)
	}
	return read, nil
}
