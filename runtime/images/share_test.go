// SPDX-License-Identifier: Apache-2.0

// Several processes and one store: conversion, pins, waiting, and who may
// write.

package images

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"z.gfire.dev/gvx/runtime/api"
)

// pullers is how many processes pull at once.
const pullers = 8

func init() {
	roles["pull"] = func(a []string) error {
		s, err := Open(a[0], Options{})
		if err != nil {
			return err
		}
		img, err := s.Pull(context.Background(), a[1], PullOptions{})
		if err != nil {
			return err
		}
		fmt.Println(img.ID)
		return nil
	}
	roles["pin"] = func(a []string) error {
		s, err := Open(a[0], Options{})
		if err != nil {
			return err
		}
		img, err := s.Get(a[1])
		if err != nil {
			return err
		}
		if _, err := s.Pin(img); err != nil {
			return err
		}
		fmt.Println("pinned")
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	}
}

func TestPullersConvertOnce(t *testing.T) {
	reg := newRegistry(t)
	reg.slow = 50 * time.Millisecond
	built := twoLayers(t)
	ref := reg.push(t, "test/two:1", built)
	root := scratch(t)
	var wg sync.WaitGroup
	for range pullers {
		wg.Go(func() {
			out, err := child(t, "pull", root, ref).CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), "sha256:") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	check(t, open(t, root))
	layers, err := built.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		d, _ := l.Digest()
		if n := reg.fetched(d); n != 1 {
			t.Errorf("%d processes fetched layer %s %d times, want once", pullers, d, n)
		}
	}
}

// TestWaitIsCancelled: a process that waits for another's conversion obeys its
// context.
func TestWaitIsCancelled(t *testing.T) {
	reg := newRegistry(t)
	built := twoLayers(t)
	ref := reg.push(t, "test/two:1", built)
	s := open(t, scratch(t))
	layers, _ := built.Layers()
	d, _ := layers[0].DiffID()
	other, err := lockPath(context.Background(), s.lockFile(hexDigest(d.Hex)), exclusive)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	waiting := make(chan struct{})
	var once sync.Once
	go func() {
		<-waiting
		cancel()
	}()
	_, err = s.Pull(ctx, ref, PullOptions{Progress: func(e Event) {
		if e.Status == StatusDone {
			once.Do(func() { close(waiting) }) // The other layer is through.
		}
	}})
	if err == nil || ctx.Err() == nil {
		t.Errorf("pull with a cancelled wait: %v", err)
	}
	other.Close()
	pull(t, s, ref)
	check(t, s)
}

func TestPruneWhilePinned(t *testing.T) {
	reg := newRegistry(t)
	ref := reg.push(t, "test/two:1", twoLayers(t))
	root := scratch(t)
	s := open(t, root)
	pull(t, s, ref)
	cmd := child(t, "pin", root, ref)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	gone, err := s.Prune(context.Background(), true)
	if err != nil || len(gone.Deleted) != 0 {
		t.Errorf("prune while pinned: %+v, %v", gone, err)
	}
	if _, err := s.Get(ref); err != nil {
		t.Error(err)
	}
	if _, err := s.Remove(context.Background(), ref, false); api.KindOf(err) != api.KindState {
		t.Errorf("rm while pinned: %v", err)
	}
	// The pin ends with its process, however that ends.
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	gone, err = s.Prune(context.Background(), true)
	if err != nil || len(gone.Deleted) != 3 {
		t.Errorf("prune after the kill: %+v, %v", gone, err)
	}
	check(t, s)
}

// TestPruneWhilePulling: what a pull has converted is not collected before it
// is published.
func TestPruneWhilePulling(t *testing.T) {
	reg := newRegistry(t)
	s := open(t, scratch(t))
	var layers [][]byte
	for i := range 12 {
		layers = append(layers, tarOf(t, member{name: fmt.Sprint("f", i), content: strings.Repeat("x", 1000*i)}))
	}
	ref := reg.push(t, "test/many:1", imageOf(t, "many", layers...))
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
				if _, err := s.Prune(context.Background(), false); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for range 5 {
		img := pull(t, s, ref)
		pin, err := s.Pin(img)
		if err != nil {
			t.Fatal(err)
		}
		pin.Close()
		if _, err := s.Remove(context.Background(), ref, true); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	wg.Wait()
	check(t, s)
}
