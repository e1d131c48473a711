// SPDX-License-Identifier: Apache-2.0

// Package hooks runs the programs that an OCI bundle wants run at the turns of a
// container's life: docker's network set-up is one, NVIDIA's another.
//
// It owns how a hook runs: the state on its standard input, exactly the
// arguments and environment that the bundle gives, one after the other, its time
// limit, which ends the children too, and the words of its failure. It never
// decides when a turn has come, never changes a container, and makes no
// namespace: who calls says when, and lends a way into the container's
// namespaces for the hooks that belong there.
//
// What is where, by runtime-spec 1.3:
//
//	kind             called                            runs in
//	prestart         create, before createRuntime      runtime namespaces
//	createRuntime    create                            runtime namespaces
//	createContainer  create, after createRuntime       container namespaces: see [Options.Enter]
//	startContainer   start, before the user's program  the container: see [Argument]
//	poststart        start, after the user's program   runtime namespaces
//	poststop         delete, after all is gone         runtime namespaces
//
// A failure of any but poststop ends the container; of poststop it is a warning
// and the next hook runs: [Run] knows the difference.
package hooks

import (
	"encoding/json"
	"path"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

// Limits of what a bundle can ask for.
const (
	// MaxHooks bounds the hooks of one kind: engines use a handful.
	MaxHooks = 256
	// MaxTimeoutSeconds keeps a time limit within time.Duration: a century.
	MaxTimeoutSeconds = 100 * 365 * 24 * 60 * 60
	// maxArgumentBytes bounds what [Argument] makes: Linux takes 128 KiB as one
	// argument.
	maxArgumentBytes = 128<<10 - 1
)

// Kind is a turn in a container's life.
type Kind string

// The kinds, in the order in which their turn comes.
const (
	Prestart        Kind = "prestart"
	CreateRuntime   Kind = "createRuntime"
	CreateContainer Kind = "createContainer"
	StartContainer  Kind = "startContainer"
	Poststart       Kind = "poststart"
	Poststop        Kind = "poststop"
)

// Kinds are all kinds in their order.
func Kinds() []Kind {
	return []Kind{Prestart, CreateRuntime, CreateContainer, StartContainer, Poststart, Poststop}
}

// Of returns the hooks of a kind; h may be nil.
func Of(h *specs.Hooks, k Kind) []specs.Hook {
	if h == nil {
		return nil
	}
	switch k {
	case Prestart:
		//lint:ignore SA1019 Deprecated by the specification; docker and podman use it.
		return h.Prestart
	case CreateRuntime:
		return h.CreateRuntime
	case CreateContainer:
		return h.CreateContainer
	case StartContainer:
		return h.StartContainer
	case Poststart:
		return h.Poststart
	case Poststop:
		return h.Poststop
	}
	return nil
}

// Validate refuses hooks that the specification forbids, before any has run; h
// may be nil. The error is an [api.Error] of KindInvalid or KindLimit.
func Validate(h *specs.Hooks) error {
	for _, k := range Kinds() {
		list := Of(h, k)
		if len(list) > MaxHooks {
			return api.Errorf(api.KindLimit, "%d %s hooks, at most %d", len(list), k, MaxHooks)
		}
		for i := range list {
			if err := validate(&list[i]); err != nil {
				return api.Errorf(api.KindInvalid, "%s hook #%d: %w", k, i, err)
			}
		}
	}
	return nil
}

func validate(h *specs.Hook) error {
	switch {
	case h.Path == "":
		return api.Errorf(api.KindInvalid, "no path")
	case !path.IsAbs(h.Path):
		return api.Errorf(api.KindInvalid, "path %q is not absolute", h.Path)
	case h.Timeout != nil && *h.Timeout <= 0:
		return api.Errorf(api.KindInvalid, "time limit of %d seconds: it must be greater than zero", *h.Timeout)
	case h.Timeout != nil && *h.Timeout > MaxTimeoutSeconds:
		return api.Errorf(api.KindInvalid, "time limit of %d seconds, at most %d", *h.Timeout, MaxTimeoutSeconds)
	}
	for _, s := range append(append([]string{h.Path}, h.Args...), h.Env...) {
		if strings.IndexByte(s, 0) >= 0 {
			return api.Errorf(api.KindInvalid, "%q holds a zero byte", s)
		}
	}
	return nil
}

// status is the state in which the specification has a container at the turn.
func (k Kind) status() specs.ContainerState {
	switch k {
	case StartContainer:
		return specs.StateCreated
	case Poststart:
		return specs.StateRunning
	case Poststop:
		return specs.StateStopped
	}
	return specs.StateCreating
}

// argumentPrefix marks the argument that carries startContainer hooks.
const argumentPrefix = "--start-container-hooks="

// argument is what travels in it.
type argument struct {
	State specs.State  `json:"state"`
	Hooks []specs.Hook `json:"hooks"`
}

// Argument packs startContainer hooks into one argument of the guest's process
// 1 ([api.InitName]), which stands before its "--". These hooks belong into the
// container, where the host's kernel cannot run anything: so that process runs
// them inside, with the user, the capabilities and the limits of the user's
// program, as runc does, and then becomes that program ([RunArgument]).
func Argument(state specs.State, list []specs.Hook) (string, error) {
	text, err := json.Marshal(argument{State: state, Hooks: list})
	if err != nil {
		return "", api.Errorf(api.KindInvalid, "startContainer hooks: %w", err)
	}
	if len(argumentPrefix)+len(text) > maxArgumentBytes {
		return "", api.Errorf(api.KindLimit, "startContainer hooks: %d bytes with the state, at most %d", len(text), maxArgumentBytes-len(argumentPrefix))
	}
	return argumentPrefix + string(text), nil
}

// IsArgument says whether s comes from [Argument].
func IsArgument(s string) bool { return strings.HasPrefix(s, argumentPrefix) }
