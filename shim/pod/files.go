// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

const (
	// directory is the one of a pod's files, in its bundle.
	directory = "gvx-pod"
	fileMode  = 0o644
	// maxHostFileBytes bounds what is taken over of the host's /etc.
	maxHostFileBytes = 1 << 20

	sharedMemory = "/dev/shm"
	bindOption   = "rbind"
)

// Files are those that a pod's containers have in common.
type Files struct{ dir string }

// hostFiles are where the host has what a pod is not told otherwise.
type hostFiles struct{ hosts, resolver, name string }

// MakeFiles makes a pod's files in its bundle.
func (c *Config) MakeFiles(bundle string) (*Files, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("make a pod's files: %w", err)
	}
	return c.makeFiles(bundle, hostFiles{hosts: "/etc/hosts", resolver: "/etc/resolv.conf", name: name})
}

func (c *Config) makeFiles(bundle string, host hostFiles) (*Files, error) {
	f := &Files{dir: filepath.Join(bundle, directory)}
	if err := os.Mkdir(f.dir, 0o711); err != nil {
		return nil, fmt.Errorf("make a pod's files: %w", err)
	}
	hosts, err := readHost(host.hosts)
	if err != nil {
		return nil, err
	}
	resolver := c.resolver()
	if !c.DNS {
		if resolver, err = readHost(host.resolver); err != nil {
			return nil, err
		}
	}
	name := c.Hostname
	if name == "" {
		name = host.name
	}
	for file, text := range map[string]string{"hosts": hosts, "resolv.conf": resolver, "hostname": name + "\n"} {
		if err := os.WriteFile(filepath.Join(f.dir, file), []byte(text), fileMode); err != nil {
			return nil, fmt.Errorf("make a pod's files: %w", err)
		}
	}
	return f, nil
}

// readHost reads a file of the host's, which may be missing.
func readHost(name string) (string, error) {
	f, err := os.Open(name)
	if os.IsNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("make a pod's files: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxHostFileBytes))
	if err != nil {
		return "", fmt.Errorf("make a pod's files: read %s: %w", name, err)
	}
	return string(data), nil
}

// resolver is resolv.conf(5).
func (c *Config) resolver() string {
	var b strings.Builder
	if len(c.Searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(c.Searches, " "))
	}
	for _, server := range c.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	if len(c.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(c.Options, " "))
	}
	return b.String()
}

// AddTo gives a container of the pod its files, where it has none of its own: what
// kubelet mounts goes before, and so do volumes on shared memory.
func (f *Files) AddTo(s *specs.Spec) {
	mode := "rw"
	if s.Root != nil && s.Root.Readonly {
		mode = "ro"
	}
	for _, file := range []string{"hosts", "resolv.conf", "hostname"} {
		f.add(s, specs.Mount{Destination: "/etc/" + file, Source: filepath.Join(f.dir, file), Options: []string{bindOption, "rprivate", mode}})
	}
	// The default is a container's own.
	s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool {
		return path.Clean(m.Destination) == sharedMemory && m.Type == "tmpfs"
	})
	// A name that the pod's containers have in common, not a place on the host: see
	// package convert.
	f.add(s, specs.Mount{Destination: sharedMemory, Source: filepath.Join(f.dir, "shm"), Options: []string{bindOption, "rprivate", "nosuid", "nodev", "noexec"}})
}

func (f *Files) add(s *specs.Spec, m specs.Mount) {
	has := slices.ContainsFunc(s.Mounts, func(other specs.Mount) bool { return path.Clean(other.Destination) == m.Destination })
	if !has {
		m.Type = "bind"
		s.Mounts = append(s.Mounts, m)
	}
}
