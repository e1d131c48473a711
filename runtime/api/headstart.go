// SPDX-License-Identifier: Apache-2.0

package api

// HeadStart is what a sandbox process is told before its spec exists: enough to
// lock the host out and to make what does not depend on a container, while the
// launcher still looks for the image. Like the spec it is checked as if it were
// hostile: see [HeadStart.Validate].
type HeadStart struct {
	// Version is SpecVersion.
	Version int `json:"version"`
	// Platform names the Sentry's platform: "systrap".
	Platform string `json:"platform"`
	// Cores is how many processors guests see, 1 to MaxCores.
	Cores int `json:"cores"`
	// Lockdown says which outer layers the launcher has put around the process.
	Lockdown Lockdown `json:"lockdown"`
	// LogLevel is "warning", "info" or "debug".
	LogLevel string `json:"logLevel,omitempty"`
	// StartedAt is the launcher's clock, CLOCK_MONOTONIC nanoseconds, when it
	// began: boot times are counted from it. Zero if unknown.
	StartedAt int64 `json:"startedAt,omitempty"`
	// SpecFirst has the process fork nothing before the spec has come: the
	// launcher may still move it to where its children have to be as well.
	SpecFirst bool `json:"specFirst,omitempty"`
	// HostNetwork says that the network will be [NetworkHost], of which the process
	// has to learn something while it sees the host's files.
	HostNetwork bool `json:"hostNetwork,omitempty"`
}

// Validate checks versions and bounds. It returns an [Error] of KindInvalid or
// KindLimit.
func (h *HeadStart) Validate() error {
	switch {
	case h.Version != SpecVersion:
		return Errorf(KindInvalid, "head start: version %d, want %d: launcher and sandbox are different builds", h.Version, SpecVersion)
	case h.Cores < 1 || h.Cores > MaxCores:
		return Errorf(KindLimit, "head start: %d cores, want 1 to %d", h.Cores, MaxCores)
	}
	return nil
}
