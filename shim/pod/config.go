// SPDX-License-Identifier: Apache-2.0

// Package pod says what Kubernetes' description of a pod means for its sandbox: which
// part of it counts, the document of a sandbox that no container has, and what
// the pod's containers find in /etc and in shared memory.
//
// containerd hands the description on as CRI has it (PodSandboxConfig) to a shim
// that makes pods by itself, and prepares nothing: what its own pods get from a
// pause container they get from here. The package makes no sandbox.
package pod

import (
	"slices"
	"strings"
	"unicode"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protowire"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// configType is the type of the description.
	configType = "runtime.v1.PodSandboxConfig"
	// maxConfigBytes bounds it: kubelet's own messages are no longer.
	maxConfigBytes = 16 << 20
	// maxListed bounds each list in it that counts.
	maxListed = 4096
)

// Mode says whose namespaces a pod has: CRI's NamespaceMode.
type Mode uint64

// The modes that say something for a pod.
const (
	ModePod  Mode = 0
	ModeNode Mode = 2
)

// Config is what counts of the description.
type Config struct {
	Hostname string
	// DNS says whether there are name servers; without, the host's are meant.
	DNS                        bool
	Servers, Searches, Options []string
	// CgroupParent is the host's cgroup of the pod.
	CgroupParent string
	Sysctls      map[string]string
	// Network and User are whose namespaces the pod has; IDs map a user
	// namespace's.
	Network, User Mode
	HasUser       bool
	UIDs, GIDs    []specs.LinuxIDMapping
	// CPUPeriod, CPUQuota and MemoryBytes are the limits of the pod as a whole.
	CPUPeriod, CPUQuota, MemoryBytes int64
}

// Parse reads the description, which has a type; without one it says nothing.
func Parse(typeURL string, value []byte) (*Config, error) {
	c := &Config{}
	if typeURL == "" && len(value) == 0 {
		return c, nil
	}
	if name := typeURL[strings.LastIndexByte(typeURL, '/')+1:]; name != configType {
		return nil, api.Errorf(api.KindInvalid, "a pod described by %q: want %s", typeURL, configType)
	}
	if len(value) > maxConfigBytes {
		return nil, api.Errorf(api.KindLimit, "the description of a pod has %d bytes, at most %d", len(value), maxConfigBytes)
	}
	err := c.parse(value)
	if err == nil {
		err = c.checkWords()
	}
	if err != nil {
		return nil, api.Errorf(api.KindOf(err), "read the description of a pod: %w", err)
	}
	return c, nil
}

// checkWords refuses what would add lines of its own to a pod's files.
func (c *Config) checkWords() error {
	for _, word := range slices.Concat([]string{c.Hostname}, c.Servers, c.Searches, c.Options) {
		if strings.ContainsFunc(word, unicode.IsControl) {
			return api.Errorf(api.KindInvalid, "a name or a name server is %q: want no control characters", word)
		}
	}
	return nil
}

// The numbers are those of CRI's api.proto.

func (c *Config) parse(value []byte) error {
	return eachField(value, func(f *field) error {
		switch f.number {
		case 2:
			c.Hostname = f.text()
		case 4:
			c.DNS = true
			return eachField(f.data, c.dns)
		case 8:
			return eachField(f.data, c.linux)
		}
		return nil
	})
}

func (c *Config) dns(f *field) error {
	list := map[protowire.Number]*[]string{1: &c.Servers, 2: &c.Searches, 3: &c.Options}[f.number]
	if list == nil {
		return nil
	}
	if len(*list) >= maxListed {
		return errTooMany("name servers")
	}
	*list = append(*list, f.text())
	return nil
}

func (c *Config) linux(f *field) error {
	switch f.number {
	case 1:
		c.CgroupParent = f.text()
	case 2: // security context
		return eachField(f.data, func(f *field) error {
			if f.number == 1 {
				return eachField(f.data, c.namespaces)
			}
			return nil
		})
	case 3:
		return c.sysctl(f.data)
	case 5:
		return eachField(f.data, func(f *field) error {
			if to := map[protowire.Number]*int64{1: &c.CPUPeriod, 2: &c.CPUQuota, 4: &c.MemoryBytes}[f.number]; to != nil {
				*to = int64(f.value)
			}
			return nil
		})
	}
	return nil
}

// sysctl is an entry of a map.
func (c *Config) sysctl(entry []byte) error {
	var key, value string
	err := eachField(entry, func(f *field) error {
		if to := map[protowire.Number]*string{1: &key, 2: &value}[f.number]; to != nil {
			*to = f.text()
		}
		return nil
	})
	if err != nil {
		return err
	}
	if c.Sysctls == nil {
		c.Sysctls = make(map[string]string)
	}
	if len(c.Sysctls) >= maxListed {
		return errTooMany("sysctls")
	}
	c.Sysctls[key] = value
	return nil
}

func (c *Config) namespaces(f *field) error {
	switch f.number {
	case 1:
		c.Network = Mode(f.value)
	case 5:
		c.HasUser = true
		return eachField(f.data, func(f *field) error {
			switch f.number {
			case 1:
				c.User = Mode(f.value)
			case 2:
				return mapping(&c.UIDs, f.data)
			case 3:
				return mapping(&c.GIDs, f.data)
			}
			return nil
		})
	}
	return nil
}

func mapping(to *[]specs.LinuxIDMapping, data []byte) error {
	var m specs.LinuxIDMapping
	err := eachField(data, func(f *field) error {
		if n := map[protowire.Number]*uint32{1: &m.HostID, 2: &m.ContainerID, 3: &m.Size}[f.number]; n != nil {
			*n = uint32(f.value)
		}
		return nil
	})
	if err == nil && len(*to) >= maxListed {
		err = errTooMany("mappings of ids")
	}
	*to = append(*to, m)
	return err
}

func errTooMany(what string) error {
	return api.Errorf(api.KindLimit, "more than %d %s", maxListed, what)
}

// field is one of a message.
type field struct {
	number protowire.Number
	// value is that of a number, data of everything else.
	value uint64
	data  []byte
}

func (f *field) text() string { return string(f.data) }

// eachField calls do for the fields of a message.
func eachField(message []byte, do func(*field) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return api.Errorf(api.KindInvalid, "%w", protowire.ParseError(n))
		}
		message = message[n:]
		f := &field{number: number}
		switch kind {
		case protowire.VarintType:
			f.value, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			f.data, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return api.Errorf(api.KindInvalid, "field %d: %w", number, protowire.ParseError(n))
		}
		message = message[n:]
		if err := do(f); err != nil {
			return err
		}
	}
	return nil
}
