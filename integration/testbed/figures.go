// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// Benchmarking says whether figures are wanted, and so enough rounds.
func Benchmarking() bool { return os.Getenv("GVX_BENCH") != "" }

// Rounds is how often something is measured: the given number for figures, a few times
// else, to see that it works.
func Rounds(forFigures int) int {
	if Benchmarking() {
		return forFigures
	}
	return 3
}

// Median is the middle of the durations.
func Median(list []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}

// Milliseconds is a duration as tables have it.
func Milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// Megabytes is a size as tables have it.
func Megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// Report prints a table to the test's output, where `make bench` shows it.
func Report(t *testing.T, title string, rows ...[]string) {
	t.Helper()
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "\n%s\n", title)
	for _, row := range rows {
		for i, cell := range row {
			if i == 0 {
				fmt.Fprintf(&text, "  %-*s", widths[i], cell)
			} else {
				fmt.Fprintf(&text, "  %*s", widths[i], cell)
			}
		}
		text.WriteByte('\n')
	}
	t.Log(text.String())
}
