// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"math"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"z.gfire.dev/gvx/runtime/api"
)

// Errors of Linux that filters answer with.
const (
	errnoPerm = 1
	// maxErrno is Linux' MAX_ERRNO.
	maxErrno = 4095
)

// seccompFlags are those of the specification that a filter may have here. What
// they change is logging, the processor's speculation and notifications.
var seccompFlags = []specs.LinuxSeccompFlag{"SECCOMP_FILTER_FLAG_TSYNC", specs.LinuxSeccompFlagLog, specs.LinuxSeccompFlagSpecAllow,
	specs.LinuxSeccompFlagWaitKillableRecv}

// seccompActions are the specification's actions and the guest's.
var seccompActions = map[specs.LinuxSeccompAction]api.SeccompAction{
	specs.ActKill:        api.SeccompKillThread,
	specs.ActKillThread:  api.SeccompKillThread,
	specs.ActKillProcess: api.SeccompKillProcess,
	specs.ActTrap:        api.SeccompTrap,
	specs.ActErrno:       api.SeccompErrno,
	specs.ActTrace:       api.SeccompTrace,
	specs.ActAllow:       api.SeccompAllow,
	specs.ActLog:         api.SeccompLog,
}

var seccompOps = map[specs.LinuxSeccompOperator]api.SeccompOp{
	specs.OpNotEqual:     api.SeccompNotEqual,
	specs.OpLessThan:     api.SeccompLess,
	specs.OpLessEqual:    api.SeccompLessEqual,
	specs.OpEqualTo:      api.SeccompEqual,
	specs.OpGreaterEqual: api.SeccompGreaterEqual,
	specs.OpGreaterThan:  api.SeccompGreater,
	specs.OpMaskedEqual:  api.SeccompMasked,
}

// ociSeccomp converts a filter; nil filters nothing.
func ociSeccomp(s *specs.LinuxSeccomp) (*api.Seccomp, []string, error) {
	if s == nil || s.DefaultAction == "" && len(s.Syscalls) == 0 {
		return nil, nil, nil
	}
	for _, f := range s.Flags {
		if !slices.Contains(seccompFlags, f) {
			return nil, nil, api.Errorf(api.KindInvalid, "seccomp flag %q not known", f)
		}
	}
	out := &api.Seccomp{}
	var err error
	if out.Default, out.Errno, err = seccompAction(s.DefaultAction, s.DefaultErrnoRet); err != nil {
		return nil, nil, err
	}
	logs := out.Default == api.SeccompLog
	for i := range s.Syscalls {
		call := &s.Syscalls[i]
		r := api.SeccompRule{Names: slices.Clone(call.Names)}
		if r.Action, r.Errno, err = seccompAction(call.Action, call.ErrnoRet); err != nil {
			return nil, nil, err
		}
		logs = logs || r.Action == api.SeccompLog
		for _, a := range call.Args {
			op, ok := seccompOps[a.Op]
			if !ok {
				return nil, nil, api.Errorf(api.KindInvalid, "string %s is not a valid operator for seccomp", a.Op)
			}
			if a.Index > 5 {
				return nil, nil, api.Errorf(api.KindInvalid, "seccomp rule for %v: a system call has no argument %d", call.Names, a.Index)
			}
			r.Args = append(r.Args, api.SeccompArg{Index: a.Index, Op: op, Value: a.Value, ValueTwo: a.ValueTwo})
		}
		out.Rules = append(out.Rules, r)
	}
	var notes []string
	if logs {
		notes = append(notes, "seccomp: what is to be logged is allowed, and not logged")
	}
	return out, notes, nil
}

// seccompAction converts an action with its error number, EPERM unless given.
func seccompAction(a specs.LinuxSeccompAction, errno *uint) (api.SeccompAction, uint16, error) {
	if a == specs.ActNotify {
		return "", 0, api.Errorf(api.KindUnsupported, "seccomp action %s: the guest's kernel notifies nobody outside", a)
	}
	action, ok := seccompActions[a]
	if !ok {
		return "", 0, api.Errorf(api.KindInvalid, "string %s is not a valid action for seccomp", a)
	}
	if action != api.SeccompErrno && action != api.SeccompTrace {
		return action, 0, nil
	}
	if errno == nil {
		return action, errnoPerm, nil
	}
	if *errno > math.MaxUint16 || action == api.SeccompErrno && *errno > maxErrno {
		return "", 0, api.Errorf(api.KindInvalid, "seccomp: error number %d is out of range", *errno)
	}
	return action, uint16(*errno), nil
}
