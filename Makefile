# SPDX-License-Identifier: Apache-2.0
#
# Everything a developer, CI and a newcomer run. `make help` explains; the
# scripts called here are the ones a user runs.

include integration/testbed/versions.env

GO      ?= go
BIN     ?= bin
# The product never links C; tests with the race detector do.
export CGO_ENABLED = 0
export GOFLAGS    += -buildvcs=false

# The client half: what builds on macOS and Windows too. Folders that are not
# there yet are left out; adapters for the Sentry are not part of it.
CLIENT_DIRS = $(wildcard oci pkg ext4lite runtime/api runtime/control runtime/state runtime/images runtime/volumes runtime/cli cmd/rungv)
CLIENT      = $$($(GO) list $(CLIENT_DIRS:%=./%/...) | grep -v /sentryfs)
CLIENT_PLATFORMS  = darwin/amd64 darwin/arm64 windows/amd64
SANDBOX_PLATFORMS = linux/amd64 linux/arm64

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  = -s -w -X z.gfire.dev/gvx/runtime/cli.Version=$(VERSION) -X z.gfire.dev/gvx/shim.Version=$(VERSION)

.DEFAULT_GOAL := help
.PHONY: help build dist test lint unit race fuzz cross integration posture nightly bench demo testbed clean

help: ## Explain the targets
	@echo 'Usage: make TARGET'
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)$$/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16
	@echo
	@echo 'Test peers and guest images are built into $${GVX_TESTBED:-~/.cache/gvx-testbed} and reused.'

build: ## Build rungv and containerd-shim-gvx-v2 into bin/
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...

dist: ## Tarballs and Debian packages for nodes in dist/, with SHA256SUMS; reproducible
	install/dist.sh '$(VERSION)' dist

demo: ## Run Python, then Docker engines with episodes, in sandboxes as an ordinary user (installs what it needs)
	install/demo.sh

test: lint unit race cross integration ## Everything CI runs (the integration part needs root)

lint: ## gofmt, go vet, staticcheck
	@files=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$files" ] || { echo "not gofmt'ed: $$files"; exit 1; }
	$(GO) vet ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION) ./...

unit: ## Unit and structure tests
	$(GO) test $$($(GO) list ./... | grep -v '/integration/') ./integration/structure

# Packages that are mostly goroutines and locks, and cheap to build with the
# race detector: not those that link the Sentry.
RACE = $(patsubst %,./%/...,$(wildcard oci pkg runtime/control runtime/state runtime/images runtime/usernet runtime/container runtime/launch shim ext4lite/internal))

race: ## The same with the race detector, where concurrency is the point
	CGO_ENABLED=1 $(GO) test -race -short $(RACE)

FUZZTIME ?= 20s

fuzz: ## Every fuzz target for $FUZZTIME (20s) each
	integration/fuzz.sh $(FUZZTIME)

cross: ## Compile for every platform: the client half for macOS and Windows too
	@set -e; for platform in $(CLIENT_PLATFORMS); do \
		echo "cross $$platform: client half"; \
		export GOOS=$${platform%/*} GOARCH=$${platform#*/}; $(GO) build $(CLIENT); done
	@set -e; for platform in $(SANDBOX_PLATFORMS); do \
		echo "cross $$platform: everything"; \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} $(GO) build ./...; done

testbed: ## Build the test peers and guest images that are missing
	integration/testbed/testbed.sh get runc runsc runsc-shim seccomp-profile registry containerd containerd-tests cni cri-tools runtime-tools runc-tests kubernetes metrics-server agent-sandbox fsstress e2fsprogs-tests vm engine demo python full net dind dind-debian redis postgres

# What failed, with all it printed, comes once more at the end of the log: what is
# kept of a long log is its end.
TESTSUM = $(GO) run gotest.tools/gotestsum@$(GOTESTSUM_VERSION) --format standard-verbose --hide-summary skipped --

# One package at a time: they share processors, and some measure.
INTEGRATION_TIMEOUT ?= 45m

integration: testbed ## Tests against the real binary, real peers and real guests (root)
	$(TESTSUM) -count=1 -p 1 -timeout $(INTEGRATION_TIMEOUT) ./integration/...

nightly: testbed ## The long tests: whole suites; writes integration/RESULTS.md
	.ci/apt wine64 gcc-mingw-w64-x86-64
	GVX_NIGHTLY=1 $(TESTSUM) -count=1 -p 1 -timeout 4h ./integration/...
	$(MAKE) fuzz FUZZTIME=3m

bench: testbed ## Measure rungv beside runc, runsc, kernel ext4, mkfs.erofs, slirp4netns and passt; engines, episodes, pods
	.ci/apt slirp4netns passt iproute2 e2fsprogs xfsprogs
	GVX_BENCH=1 $(GO) test -count=1 -v -timeout 2h ./integration/perf
	GVX_BENCH=1 $(GO) test -count=1 -v -timeout 1h -run '^TestPodFigures$$' ./integration/containerd

clean: ## Remove what was built in the tree (not the test bed)
	rm -rf $(BIN)
