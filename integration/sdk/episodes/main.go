// SPDX-License-Identifier: Apache-2.0

// Command episodes is an example of a rollout worker: it runs many episodes at once,
// each in a sandbox of its own on a clone of one golden volume, and prints what
// became of each as a line of JSON. Tests run it, kill it and its sandboxes at random,
// and look for what is left. It never mends: what fails is reported by its kind.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"z.gfire.dev/gvx/pkg/gvx"
)

// result is a line of output.
type result struct {
	Episode int `json:"episode"`
	// Outcome is "ok", "mixed" if the episode saw another's work, or the kind of the
	// error, "untyped" if it has none.
	Outcome string `json:"outcome"`
	Detail  string `json:"detail,omitempty"`
}

// errMixed says that an episode saw what is not its own.
var errMixed = errors.New("saw another's work")

// worker is what all episodes share.
type worker struct {
	config gvx.Config
	chaos  bool
}

func main() {
	var w worker
	golden := flag.String("golden", "", "golden volume: a file golden in its root says so")
	count := flag.Int("count", 64, "how many episodes")
	at := flag.Int("at-once", 64, "how many of them at once")
	flag.StringVar(&w.config.RuntimePath, "rungv", "", "rungv")
	flag.StringVar(&w.config.Root, "root", "", "rungv's root")
	flag.StringVar(&w.config.OCIImage, "image", "debian:12", "image with a shell")
	flag.BoolVar(&w.chaos, "chaos", false, "end some episodes in the middle")
	flag.Parse()
	w.config.Pull, w.config.NetworkMode = gvx.PullNever, gvx.NetModeNone
	w.config.Cmd = []string{"sleep", "infinity"}
	w.config.Mounts = []gvx.Mount{{Kind: gvx.MountVolume, ImagePath: *golden, GuestPath: "/v", Clone: gvx.CloneEphemeral}}

	goroutines, files := runtime.NumGoroutine(), descriptors()
	w.all(*count, *at)
	for range 500 { // What has ended may take a moment.
		if runtime.NumGoroutine() <= goroutines && descriptors() <= files {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	log.Fatalf("%d goroutines and %d descriptors, %d and %d before", runtime.NumGoroutine(), descriptors(), goroutines, files)
}

// all runs the episodes.
func (w *worker) all(count, at int) {
	places := make(chan struct{}, at)
	var group sync.WaitGroup
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	for n := range count {
		places <- struct{}{}
		group.Go(func() {
			defer func() { <-places }()
			r := result{Episode: n, Outcome: "ok"}
			if err := w.episode(n); err != nil {
				r.Outcome, r.Detail = outcome(err), err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			if err := out.Encode(r); err != nil {
				log.Fatal(err)
			}
		})
	}
	group.Wait()
}

// outcome is how an error is reported.
func outcome(err error) string {
	var typed *gvx.Error
	switch {
	case errors.Is(err, errMixed):
		return "mixed"
	case errors.As(err, &typed):
		return string(typed.Kind)
	}
	return "untyped"
}

// episode works in a sandbox of its own, and sees nobody else's work.
func (w *worker) episode(n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	sb, err := gvx.New(ctx, w.config)
	if err != nil {
		return err
	}
	defer sb.Close()
	if w.chaos && n%4 == 3 {
		how := []func(){cancel, func() { sb.Close() }}[rand.IntN(2)]
		defer time.AfterFunc(time.Duration(rand.IntN(3000))*time.Millisecond, how).Stop()
	}
	if err := sb.Start(ctx); err != nil {
		return err
	}
	for round := range 5 {
		mark := fmt.Sprintf("episode %d, round %d\n", n, round)
		if err := sb.WriteFile(ctx, "/v/me", []byte(mark), 0o600); err != nil {
			return err
		}
		seen, err := sb.Output(ctx, "sh", "-c", "cat /v/golden /v/me && ls -d /v/me* && sleep 0.1 && cp /v/me /tmp/mine && ls /tmp")
		if err != nil {
			return err
		}
		kept, err := sb.ReadFile(ctx, "/tmp/mine")
		if err != nil {
			return err
		}
		if string(seen) != "golden\n"+mark+"/v/me\nmine\n" || string(kept) != mark {
			return fmt.Errorf("%w: %q and %q", errMixed, seen, kept)
		}
	}
	return nil
}

// descriptors counts the program's.
func descriptors() int {
	list, _ := filepath.Glob("/proc/self/fd/*")
	return len(list)
}
