package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/show/view"
)

// completionLimit bounds how long a Tab waits for the controller.
const completionLimit = time.Second

// completion offers words for the word being typed.
type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// offer completes with words from the cluster, each with a note.
func (a *app) offer(cmd *cobra.Command, words func(view.Cluster) []string) ([]string, cobra.ShellCompDirective) {
	ctx, stop := context.WithTimeout(cmd.Context(), completionLimit)
	defer stop()
	c, err := a.read(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return words(c), cobra.ShellCompDirectiveNoFileComp
}

func anyJob(view.Job) bool    { return true }
func openJob(j view.Job) bool { return j.State != fleet.JobEnded }
func overJob(j view.Job) bool { return j.State == fleet.JobEnded }

// completeJobs completes wanted jobs that are not yet on the command line.
func (a *app) completeJobs(wanted func(view.Job) bool) completion {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		named := unique(args)
		return a.offer(cmd, func(c view.Cluster) (words []string) {
			for _, j := range c.Jobs {
				if wanted(j) && !named[string(j.ID)] {
					words = append(words, string(j.ID)+"\t"+string(j.State)+": "+view.Command(j.Spec.Args))
				}
			}
			return words
		})
	}
}

// completeGuests completes guests that are not yet on the command line.
func (a *app) completeGuests(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	named := unique(args)
	return a.offer(cmd, func(c view.Cluster) []string {
		return slices.DeleteFunc(guestWords(c), func(w string) bool {
			id, _, _ := strings.Cut(w, "\t")
			return named[id]
		})
	})
}

// completeMoves completes a command's one move.
func (a *app) completeMoves(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.offer(cmd, moveWords)
}

func moveWords(c view.Cluster) (words []string) {
	for _, m := range c.Moves {
		words = append(words, string(m.ID)+"\tmove: "+view.Clean(m.Why))
	}
	return words
}

func guestWords(c view.Cluster) (words []string) {
	for _, g := range c.Guests {
		if !g.State.Ended() {
			words = append(words, string(g.ID)+"\t"+string(g.State)+" on "+string(g.Home))
		}
	}
	return words
}

// completeHosts completes a flag that takes hosts, joined by commas if it takes several.
func (a *app) completeHosts(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndex(typed, ",")+1]
	return a.offer(cmd, func(c view.Cluster) (words []string) {
		for _, w := range hostWords(c) {
			words = append(words, before+w)
		}
		return words
	})
}

// completeHostArgument completes a command's one host.
func (a *app) completeHostArgument(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.offer(cmd, hostWords)
}

// completeSites completes the site of a move's target.
func (a *app) completeSites(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.offer(cmd, func(c view.Cluster) (words []string) {
		for _, h := range c.Hosts {
			if s := h.Facts.Site; s != "" && !slices.Contains(words, s) {
				words = append(words, s)
			}
		}
		return words
	})
}

// completeUsers completes a command's one user, or a flag that takes one.
func (a *app) completeUsers(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.offer(cmd, func(c view.Cluster) (words []string) {
		for _, u := range c.Users {
			words = append(words, string(u.ID)+"\t"+string(u.Role))
		}
		return words
	})
}

// completeTokens completes a command's one join token.
func (a *app) completeTokens(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.offer(cmd, func(c view.Cluster) (words []string) {
		for _, t := range c.Tokens {
			words = append(words, string(t.ID)+"\tfor a "+string(t.Role))
		}
		return words
	})
}

// CompleteJob completes the one job of a command that is not of this package.
func CompleteJob(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return (&app{flags: cmd.Flags()}).completeJobs(anyJob)(cmd, args, typed)
}

// CompleteHost does the same for one host.
func CompleteHost(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	return (&app{flags: cmd.Flags()}).completeHostArgument(cmd, args, typed)
}

// CompleteHostOrGuest does the same for one host or guest.
func CompleteHostOrGuest(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return (&app{flags: cmd.Flags()}).offer(cmd, func(c view.Cluster) []string { return append(hostWords(c), guestWords(c)...) })
}

func hostWords(c view.Cluster) (words []string) {
	for _, h := range c.Hosts {
		words = append(words, string(h.ID)+"\t"+string(h.State)+", "+view.Count(len(h.GuestIDs), "guest"))
	}
	return words
}

// completeAnything completes guests, jobs, hosts and moves.
func (a *app) completeAnything(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.offer(cmd, func(c view.Cluster) []string {
		words := append(guestWords(c), hostWords(c)...)
		for _, j := range c.Jobs {
			words = append(words, string(j.ID)+"\tjob, "+string(j.State))
		}
		return append(words, moveWords(c)...)
	})
}
