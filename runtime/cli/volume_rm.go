// SPDX-License-Identifier: Apache-2.0

// volume rm and volume prune.

package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
	"z.gfire.dev/gvx/runtime/container"
	"z.gfire.dev/gvx/runtime/volumes"
)

func newVolumeRmCommand(g *globals) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "rm [OPTIONS] VOLUME [VOLUME...]",
		Aliases: []string{"remove"},
		Short:   "Remove one or more volumes",
		Long: `Remove volumes and what is in them. A volume that a container has, running or
not, stays, and so does one that is the base of clones.`,
		Example: "  rungv volume rm data\n  rungv volume rm ./episode.delta",
		Args:    atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, r, err := volumeStore(g)
			if err != nil {
				return err
			}
			return eachVolume(cmd, s, args, func(_ context.Context, v volumes.Ref) error {
				err := unusedVolume(r, v)
				if err == nil {
					_, err = s.Remove(v)
				}
				if force && api.KindOf(err) == api.KindNotFound {
					return nil // As docker: what was wanted is so.
				}
				return err
			})
		},
		ValidArgsFunction: completeVolumes(g, 0),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "Do not complain about volumes that do not exist")
	return cmd
}

// unusedVolume refuses a volume that a container has, in docker's words.
func unusedVolume(r *container.Runner, v volumes.Ref) error {
	if ids := volumeUsers(r, v.Path); len(ids) > 0 {
		return api.Errorf(api.KindState, "remove %s: volume is in use - [%s]: remove the container first", v, strings.Join(ids, ", "))
	}
	return nil
}

// The warnings of docker volume prune.
const (
	warnVolumePrune    = "WARNING! This will remove anonymous local volumes not used by at least one container."
	warnVolumePruneAll = "WARNING! This will remove all local volumes not used by at least one container."
)

func newVolumePruneCommand(g *globals) *cobra.Command {
	var all, force bool
	var filters []string
	cmd := &cobra.Command{
		Use:   "prune [OPTIONS]",
		Short: "Remove unused local volumes",
		Long: `Remove the volumes of the store that no container has: those without a name of
their own, with --all every one. A volume that is the base of clones elsewhere
stays. Files outside the store are not looked at.

Filters: label=KEY[=VALUE], label!=KEY[=VALUE], all=true.`,
		Example: "  rungv volume prune\n  rungv volume prune --all --force --filter label!=keep",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := parseVolumeFilter(filters, "label", "label!", "all")
			if err != nil {
				return err
			}
			all = all || len(f["all"]) > 0 && f["all"][0] == "true"
			warning := warnVolumePrune
			if all {
				warning = warnVolumePruneAll
			}
			if !force && !confirmed(cmd.InOrStdin(), cmd.OutOrStdout(), warning) {
				return api.Errorf(api.KindInvalid, "volume prune has been cancelled")
			}
			return runVolumePrune(cmd, g, f, all)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "Remove all unused volumes, not just anonymous ones")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "Do not prompt for confirmation")
	cmd.Flags().StringArrayVar(&filters, "filter", nil, `Provide filter values (e.g. "label=<label>")`)
	return cmd
}

// confirmed asks a question.
func confirmed(in io.Reader, out io.Writer, warning string) bool {
	fmt.Fprintf(out, "%s\nAre you sure you want to continue? [y/N] ", warning)
	answer, _ := bufio.NewReader(in).ReadString('\n')
	return strings.ToLower(strings.TrimSpace(answer)) == "y"
}

func runVolumePrune(cmd *cobra.Command, g *globals, f volumeFilter, all bool) error {
	s, r, err := volumeStore(g)
	if err != nil {
		return err
	}
	var removed []string
	var freed int64
	// A clone before its base: again, as long as something goes.
	for again := true; again; {
		again = false
		list, err := s.List()
		if err != nil {
			return err
		}
		for _, in := range list {
			_, anonymous := in.Labels[labelAnonymous]
			if !all && !anonymous || !f.keep(in, 0) || len(r.VolumeUsers(in.Path)) > 0 {
				continue
			}
			n, err := s.Remove(in.Ref)
			switch api.KindOf(err) {
			case "":
				removed, freed, again = append(removed, in.Name), freed+n, true
			case api.KindState, api.KindNotFound: // in use after all, or gone
			default:
				g.warn("%v", err)
			}
		}
	}
	if err := s.ForgetGone(); err != nil {
		g.warn("%v", err)
	}
	out := cmd.OutOrStdout()
	if len(removed) > 0 {
		fmt.Fprintf(out, "Deleted Volumes:\n%s\n\n", strings.Join(removed, "\n"))
	}
	_, err = fmt.Fprintf(out, "Total reclaimed space: %s\n", humanSize(freed))
	return err
}
