// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"strings"
	"testing"
)

func TestReplaceSection(t *testing.T) {
	document := replaceSection("", "one", "1")
	document = replaceSection(document, "two", "2")
	document = replaceSection(document, "one", "uno")
	document = replaceSection(document, "two", "due")
	want := resultsTitle + "\n## one\n\nuno\n\n## two\n\ndue\n"
	if document != want {
		t.Errorf("got %q\nwant %q", document, want)
	}
	if strings.Count(document, "## ") != 2 {
		t.Errorf("sections were doubled: %q", document)
	}
}
