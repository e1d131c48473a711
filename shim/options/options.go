// SPDX-License-Identifier: Apache-2.0

// Package options reads what an administrator may choose for gvx's runtime: a TOML
// document that containerd hands on, from its own configuration or as a path of a
// file (runtimeoptions/v1), and annotations of a container that narrow it.
//
// It only reads and checks; what the choices do is the runtime's. A key that it
// does not know is an error: a misspelled choice must not be a silent default.
package options

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"z.gfire.dev/gvx/runtime/api"
)

// keptFile is, in the bundle of a sandbox, what its runtime options are: containerd
// gives them to who starts its shim, and not to the shim.
const keptFile = "gvx-options"

// maxBytes bounds the document: it has some ten keys.
const maxBytes = 64 << 10

// The values of [Options.Network].
const (
	// NetworkNetns takes over the interfaces of the container's network
	// namespace, as CNI and docker set them up.
	NetworkNetns = "netns"
	// NetworkNone gives the guest a loopback interface alone.
	NetworkNone = "none"
)

// The values of [Options.Overlay].
const (
	// OverlayPrivate keeps what a guest writes over EROFS layers in a file of the
	// sandbox's own where the snapshotter has no file for it.
	OverlayPrivate = "private"
	// OverlayHost writes it to the snapshotter's folder, where commit and diff
	// see it, at the price of a file server between guest and host.
	OverlayHost = "host"
)

// Options are the choices.
type Options struct {
	// Debug logs what sandboxes do.
	Debug bool `toml:"debug"`
	// DebugLog is a file, or a folder if it ends in "/", that gets it; else it
	// goes to containerd's log.
	DebugLog string `toml:"debug_log"`
	// Platform is how guests' instructions are run: "systrap".
	Platform string `toml:"platform"`
	// Network is one of the Network constants.
	Network string `toml:"network"`
	// HostNetwork gives pods and containers without a network namespace, as
	// hostNetwork asks for, the host's network; without it they are refused.
	HostNetwork bool `toml:"host_network"`
	// Durability is what a guest's fsync means for its root file system: one of
	// api's.
	Durability string `toml:"durability"`
	// Overlay is one of the Overlay constants.
	Overlay string `toml:"overlay"`

	// TypeURL is in the document when CRI hands on the whole table of its
	// configuration; it says nothing.
	TypeURL string `toml:"TypeUrl"`
}

// Default are the choices of who made none.
func Default() Options {
	return Options{
		Platform: "systrap", Network: NetworkNetns, Durability: string(api.DurabilityProcess), Overlay: OverlayPrivate,
	}
}

// Parse reads the options of a task request: a type and a message, both empty when
// there are none.
func Parse(typeURL string, value []byte) (Options, error) {
	if typeURL == "" && len(value) == 0 {
		return Default(), nil
	}
	var message runtimeoptions.Options
	name := typeURL[strings.LastIndexByte(typeURL, '/')+1:]
	if none, err := onlyClients(name, value); none || err != nil {
		return Default(), err
	}
	if name != string(message.ProtoReflect().Descriptor().FullName()) {
		return Options{}, api.Errorf(api.KindInvalid, "runtime options of type %q are another runtime's", typeURL)
	}
	if err := proto.Unmarshal(value, &message); err != nil {
		return Options{}, api.Errorf(api.KindInvalid, "decode runtime options: %w", err)
	}
	body := message.GetConfigBody()
	name = "runtime options"
	if path := message.GetConfigPath(); path != "" {
		var err error
		if body, err = readFile(path); err != nil {
			return Options{}, api.Errorf(api.KindInvalid, "read runtime options: %w", err)
		}
		name = path
	}
	return parseTOML(name, body)
}

// clientFields are what containerd's client puts into runc's options for a runtime
// without any: where the sandbox API is served, which the daemon has taken from
// there, who owns the streams, which is nobody here, and the shim's cgroup, which the
// shim's start has put it into.
var clientFields = []protoreflect.Name{"task_api_address", "task_api_version", "io_uid", "io_gid", "shim_cgroup"}

// onlyClients says whether options are runc's and hold nothing but that.
func onlyClients(name string, value []byte) (bool, error) {
	var message runcoptions.Options
	m := message.ProtoReflect()
	if name != string(m.Descriptor().FullName()) {
		return false, nil
	}
	if err := proto.Unmarshal(value, &message); err != nil {
		return false, api.Errorf(api.KindInvalid, "decode runtime options: %w", err)
	}
	for _, field := range clientFields {
		m.Clear(m.Descriptor().Fields().ByName(field))
	}
	return proto.Size(&message) == 0, nil
}

// Keep leaves options in a bundle, for [Kept] to find.
func Keep(bundle string, o *runtimeoptions.Options) error {
	data, err := proto.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode runtime options: %w", err)
	}
	if err := os.WriteFile(filepath.Join(bundle, keptFile), data, 0o600); err != nil {
		return fmt.Errorf("keep runtime options: %w", err)
	}
	return nil
}

// Kept reads the options that a bundle has, those of who made none otherwise.
func Kept(bundle string) (Options, error) {
	data, err := readFile(filepath.Join(bundle, keptFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	if err != nil {
		return Options{}, fmt.Errorf("read runtime options: %w", err)
	}
	var message runtimeoptions.Options
	return Parse(string(message.ProtoReflect().Descriptor().FullName()), data)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxBytes+1))
}

// parseTOML reads the document over the defaults, and checks it.
func parseTOML(name string, body []byte) (Options, error) {
	o := Default()
	if len(body) > maxBytes {
		return Options{}, api.Errorf(api.KindLimit, "%s: longer than %d bytes", name, maxBytes)
	}
	d := toml.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		var unknown *toml.StrictMissingError
		if errors.As(err, &unknown) {
			err = fmt.Errorf("unknown key %q", strings.Join(unknown.Errors[0].Key(), "."))
		}
		return Options{}, api.Errorf(api.KindInvalid, "%s: %w", name, err)
	}
	return o, o.check(name)
}

// check refuses values that mean nothing.
func (o *Options) check(name string) error {
	for _, c := range []struct {
		key, value string
		known      []string
	}{
		{"platform", o.Platform, []string{"systrap"}},
		{"network", o.Network, []string{NetworkNetns, NetworkNone}},
		{"durability", o.Durability, []string{string(api.DurabilityHost), string(api.DurabilityProcess)}},
		{"overlay", o.Overlay, []string{OverlayPrivate, OverlayHost}},
	} {
		if !slices.Contains(c.known, c.value) {
			return api.Errorf(api.KindInvalid, "%s: %s = %q: there are %s", name, c.key, c.value, strings.Join(c.known, ", "))
		}
	}
	if o.HostNetwork && o.Network == NetworkNone {
		return api.Errorf(api.KindInvalid, "%s: host_network = true: not with network = %q, which gives nobody a network", name, NetworkNone)
	}
	if o.DebugLog != "" && !strings.HasPrefix(o.DebugLog, "/") {
		return api.Errorf(api.KindInvalid, "%s: debug_log = %q is not an absolute path", name, o.DebugLog)
	}
	return nil
}
