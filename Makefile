# The two commands of a newcomer: make demo, make test. Both set up what they
# need on a fresh Debian or Ubuntu with Go, Node.js and Python.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

.PHONY: help
help: ## Say what there is to make
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: demo
demo: needs build ## Show SpecBox with six real servers, measured on this machine
	@bin/specbox demo

.PHONY: test
test: needs lint servers conformance ## Install what the tests need, and run all checks and tests
	go test -race -shuffle=on -timeout 40m ./...

.PHONY: conformance
conformance: needs ## Compare what the official suite finds with and without SpecBox
	@go run ./conformance

FUZZTIME ?= 30m
.PHONY: fuzz
fuzz: ## Fuzz the whole house: each target for FUZZTIME
	@for target in FuzzHTTP FuzzServerOutput FuzzStdin; do \
	  go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x ./e2e; \
	done

SEEDS ?= 1000
STORM ?= 20m
.PHONY: chaos
chaos: ## Do random things to the sandbox manager: SEEDS seeds in virtual time, then for STORM with real processes
	go test -race -timeout 60m -run '^TestLawsHoldInChaos$$' ./sandbox -seeds $(SEEDS)
	go test -race -timeout 90m -run '^TestStorm$$' ./sandbox -storm $(STORM)

.PHONY: build
build: ## Build bin/specbox, one static program
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/specbox ./cmd/specbox

.PHONY: lint
lint: ## gofmt, vet, staticcheck, govulncheck
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	  if [ -n "$$unformatted" ]; then echo "gofmt -w $$unformatted"; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) ./...
	@.ci/vulnerabilities $(GOVULNCHECK)

.PHONY: bench
bench: ## Run the benchmarks
	go test -run '^$$' -bench . -benchmem ./...

.PHONY: servers
servers: ## Install the real servers that tests and demo run, into .cache/servers
	@go run ./servers/install

.PHONY: needs
needs: ## Install the system's packages that are missing
	@.ci/needs

.PHONY: clean
clean: ## Remove what was built and installed here
	rm -rf bin .cache
