// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// TestPodVolume: a pod's annotation gives a container a clone of a golden volume,
// which goes with the pod.
func TestPodVolume(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB", Runtimes: testbed.Handlers})
	c.CRIPause(t, "erofs")
	image := c.CRIImage(t, "erofs", "demo")
	golden := filepath.Join(c.Dir, "golden.ext4")
	testbed.EmptyVolume(t, golden, 256<<20)
	annotate := func(clone string) func(object) {
		return func(doc object) {
			doc["annotations"] = object{"dev.gvx.volume.data": "src=" + golden + ",dst=/data,container=one" + clone}
		}
	}
	// The first pod fills it, the next ones have clones of what it left.
	fill := runPod(t, c, "gvx", "fill", annotate(""))
	one := fill.run(image, "one", nil, "sleep", "1000")
	c.MustCrictl(t, "exec", one, "sh", "-c", "echo golden > /data/file; sync")
	fill.remove()
	var pods []*pod
	for _, name := range []string{"a", "b"} {
		p := runPod(t, c, "gvx", name, annotate(",clone=ephemeral"))
		pods = append(pods, p)
		one, two := p.run(image, "one", nil, "sleep", "1000"), p.run(image, "two", nil, "sleep", "1000")
		if out := c.MustCrictl(t, "exec", one, "sh", "-c", "cat /data/file; echo mine > /data/file; echo "+name+" >> /data/new; cat /data/new"); out != "golden\n"+name+"\n" {
			t.Errorf("pod %s: %q", name, out)
		}
		if out := c.MustCrictl(t, "exec", two, "sh", "-c", "ls /data 2>&1 || true"); !strings.Contains(out, "No such file") {
			t.Errorf("pod %s: the container without the volume has %q", name, out)
		}
	}
	for _, p := range pods {
		p.remove()
	}
	nothingLeft(t, c)
}

// TestPodKilled: what a pod's shim takes with it when it is killed, CRI cleans up.
func TestPodKilled(t *testing.T) {
	c := newGVX(t, testbed.ContainerdOptions{ErofsSize: "1GiB", Runtimes: testbed.Handlers})
	c.CRIPause(t, "erofs")
	image := c.CRIImage(t, "erofs", "demo")
	for _, victim := range []string{testbed.ShimName, "gvx-sandbox"} {
		p := runPod(t, c, "gvx", "pod", nil)
		one := p.run(image, "one", nil, "sleep", "1000")
		two := p.run(image, "two", nil, "sleep", "1000")
		if err := syscall.Kill(find(t, c, victim), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{one, two} {
			await(t, "the end of a container", func() bool { return strings.Contains(c.MustCrictl(t, "inspect", id), "CONTAINER_EXITED") })
		}
		await(t, "the end of the pod", func() bool { return strings.Contains(c.MustCrictl(t, "inspectp", p.id), "SANDBOX_NOTREADY") })
		p.remove()
		nothingLeft(t, c)
	}
}
