// SPDX-License-Identifier: Apache-2.0

package container

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/control"
	controlv1 "z.gfire.dev/gvx/runtime/control/v1"
)

// fullSandbox takes streams and refuses the process.
type fullSandbox struct {
	controlv1.SandboxService
}

func (fullSandbox) Exec(context.Context, *controlv1.ExecRequest) (*controlv1.ExecResponse, error) {
	return nil, api.Errorf(api.KindLimit, "no more processes")
}

func (fullSandbox) ExecStarted(ctx context.Context, _ *controlv1.ExecStartedRequest) (*controlv1.ExecStartedResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestRefusedExecWithFiles: whoever wants an additional process hears why there is none,
// also where the sandbox still holds pipes whose other ends go to files.
func TestRefusedExecWithFiles(t *testing.T) {
	dir := t.TempDir()
	// What is sent here is held, and never read.
	held, err := listenUnix(dir, streamsSocket, unix.SOCK_DGRAM)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	near, far := net.Pipe()
	s, err := control.NewServer(fullSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	go func() { _ = s.ServeConn(context.Background(), far) }()
	c := control.NewClient(near)
	defer c.Close()
	open := func(name string) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	output, extra := open("output"), open("extra")
	defer output.Close()
	defer extra.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := &api.Process{Args: []string{"true"}, Cwd: "/"}
	_, err = startProcess(ctx, c, dir, "c", p, []*os.File{extra}, nil, output, output)
	if err == nil || !strings.Contains(err.Error(), "no more processes") {
		t.Errorf("%v", err)
	}
}
