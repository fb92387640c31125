package main

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	resourceslicetracker "k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	internalqueue "k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"
)

// What a queue wants of its metrics, which nobody reads here.
const (
	metricsBuffer   = 10
	metricsInterval = time.Second
)

// cluster is one problem's world: a framework, and the snapshot it looks at.
type cluster struct {
	framework framework.Framework
	snapshot  *internalcache.Snapshot
	preempted *preemptionRecord
}

// newCluster puts the problem's objects into the stores of informers that never start: listers read them from there, no
// watch is needed, and nothing happens at a time of its own.
func newCluster(ctx context.Context, p *problem) (*cluster, error) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1"}) // only handed on; nobody calls it
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	if err := p.fill(factory); err != nil {
		return nil, err
	}
	made := &cluster{snapshot: internalcache.NewEmptySnapshot(), preempted: newPreemptionRecord()}
	if err := made.takeSnapshot(ctx, p); err != nil {
		return nil, err
	}
	if made.framework, err = made.newFramework(ctx, p, client, factory); err != nil {
		return nil, err
	}
	made.nominate(ctx, p, factory)
	return made, nil
}

func (p *problem) fill(factory informers.SharedInformerFactory) error {
	core, apps, storage := factory.Core().V1(), factory.Apps().V1(), factory.Storage().V1()
	err := addAll(core.Pods().Informer(), append(p.livePods(), p.Pod))
	for _, add := range []func() error{
		func() error { return addAll(core.Namespaces().Informer(), p.Namespaces) },
		func() error { return addAll(core.Nodes().Informer(), p.Nodes) },
		func() error { return addAll(core.Services().Informer(), p.Services) },
		func() error { return addAll(core.ReplicationControllers().Informer(), p.ReplicationControllers) },
		func() error { return addAll(apps.ReplicaSets().Informer(), p.ReplicaSets) },
		func() error { return addAll(apps.StatefulSets().Informer(), p.StatefulSets) },
		func() error { return addAll(factory.Policy().V1().PodDisruptionBudgets().Informer(), p.Budgets) },
		func() error { return addAll(core.PersistentVolumes().Informer(), p.Volumes) },
		func() error { return addAll(core.PersistentVolumeClaims().Informer(), p.Claims) },
		func() error { return addAll(storage.StorageClasses().Informer(), p.StorageClasses) },
		func() error { return addAll(storage.CSINodes().Informer(), p.CSINodes) },
		func() error { return addAll(storage.CSIDrivers().Informer(), p.CSIDrivers) },
		func() error { return addAll(storage.CSIStorageCapacities().Informer(), p.CSIStorageCapacities) },
		func() error { return addAll(storage.VolumeAttachments().Informer(), p.VolumeAttachments) },
	} {
		if err == nil {
			err = add()
		}
	}
	return err
}

func addAll[T runtime.Object](informer cache.SharedIndexInformer, objects []T) error {
	for _, object := range objects {
		if err := informer.GetIndexer().Add(object); err != nil {
			return err
		}
	}
	return nil
}

// livePods leaves out those that have ended: kube-scheduler's own watch never shows them.
func (p *problem) livePods() []*v1.Pod {
	var live []*v1.Pod
	for _, pod := range p.Pods {
		if pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed {
			live = append(live, pod)
		}
	}
	return live
}

func (c *cluster) takeSnapshot(ctx context.Context, p *problem) error {
	logger := klog.FromContext(ctx)
	known := internalcache.New(ctx, nil, utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload))
	for _, node := range p.Nodes {
		known.AddNode(logger, node)
	}
	for _, pod := range p.livePods() {
		if pod.Spec.NodeName == "" {
			continue
		}
		if err := known.AddPod(logger, pod); err != nil {
			return fmt.Errorf("pod %s: %w", pod.Name, err)
		}
	}
	return known.UpdateSnapshot(logger, c.snapshot)
}

func (c *cluster) newFramework(
	ctx context.Context, p *problem, client kubernetes.Interface, factory informers.SharedInformerFactory,
) (framework.Framework, error) {
	profile, err := p.profile()
	if err != nil {
		return nil, err
	}
	registry := plugins.NewInTreeRegistry()
	registry[names.DefaultPreemption] = c.preempted.watching(registry[names.DefaultPreemption])
	devices, err := newDeviceManager(ctx, client, factory)
	if err != nil {
		return nil, err
	}
	made, err := frameworkruntime.NewFramework(ctx, registry, profile,
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithSharedDRAManager(devices),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithSnapshotSharedLister(c.snapshot),
		frameworkruntime.WithParallelism(1),
		frameworkruntime.WithWaitingPods(frameworkruntime.NewWaitingPodsMap()),
		frameworkruntime.WithPodsInPreBind(frameworkruntime.NewPodsInPreBindMap()),
	)
	if err != nil {
		return nil, err
	}
	made.SetAPICacher(noWrites{})
	return made, nil
}

// newDeviceManager gives DynamicResources what it wants to exist; no problem has claims on devices.
func newDeviceManager(
	ctx context.Context, client kubernetes.Interface, factory informers.SharedInformerFactory,
) (fwk.SharedDRAManager, error) {
	slices, err := resourceslicetracker.StartTracker(ctx, resourceslicetracker.Options{
		SliceInformer: factory.Resource().V1().ResourceSlices(),
		KubeClient:    client,
	})
	if err != nil {
		return nil, err
	}
	informer := factory.Resource().V1().ResourceClaims().Informer()
	claims := assumecache.NewAssumeCache(klog.FromContext(ctx), informer, "ResourceClaim", "", nil)
	return dynamicresources.NewDRAManager(ctx, claims, slices, factory), nil
}

// nominate puts the pending pods into a queue, which knows them by the node that preemption has promised them.
func (c *cluster) nominate(ctx context.Context, p *problem, factory informers.SharedInformerFactory) {
	recorder := metrics.NewMetricsAsyncRecorder(metricsBuffer, metricsInterval, ctx.Done())
	queue := internalqueue.NewSchedulingQueue(
		c.framework.QueueSortFunc(), factory, internalqueue.WithMetricsRecorder(recorder),
	)
	c.framework.SetPodNominator(queue)
	for _, pod := range p.livePods() {
		if pod.Spec.NodeName == "" {
			queue.Add(ctx, pod)
		}
	}
}

// noWrites takes the place of the API server for the one write that preemption makes besides deleting its victims: taking
// their nominations from lower pods.
type noWrites struct{}

func (noWrites) PatchPodStatus(*v1.Pod, *v1.PodCondition, *fwk.NominatingInfo) (<-chan error, error) {
	return nil, nil
}

func (noWrites) BindPod(binding *v1.Binding) (<-chan error, error) {
	return nil, fmt.Errorf("the oracle binds no pods, not even %s", binding.Name)
}

func (noWrites) WaitOnFinish(context.Context, <-chan error) error { return nil }
