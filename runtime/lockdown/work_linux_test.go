// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package lockdown

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

func mustInstall(a Action) {
	insns, err := Filter(FilterOptions{ListenFD: -1, Action: a})
	if err == nil {
		err = Install(insns)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// childFilteredWork does what a Go program does, after the filter. It lasts
// longer than sysmon's one-second habits.
func childFilteredWork() {
	time.Local = time.UTC
	r, w, err := os.Pipe()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	mustInstall(Kill)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			runtime.LockOSThread()
			time.Sleep(10 * time.Millisecond)
		})
	}
	// A loop without calls is preempted by a signal.
	stop := make(chan struct{})
	wg.Go(func() {
		x := 0
		for i := 0; i < 1<<28; i++ {
			x += i
		}
		_ = x
		close(stop)
	})
	keep := make([][]byte, 8)
	for i := range 64 {
		keep[i%8] = make([]byte, 1<<20)
		if i%8 == 0 {
			clear(keep)
			runtime.GC()
		}
	}
	debug.FreeOSMemory()
	m := make(map[int]int)
	for i := range 1000 {
		m[i] = i
	}
	go func() {
		time.Sleep(1200 * time.Millisecond)
		w.Write([]byte("x"))
		w.Close()
	}()
	buf := make([]byte, 1)
	r.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := r.Read(buf); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	<-stop
	wg.Wait()
	os.Stdout.WriteString("done")
	runtime.KeepAlive(m)
}
