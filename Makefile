# The project's commands. `make help` lists them; the scripts in tools/ do the work.

TAM := target/release/tam
# Network devices, namespaces and BPF need root.
ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
RUST := . tools/rust.sh && rust_find &&
BENCHES := forward user touch levels
SOAK_MINUTES ?= 30
FUZZ_SECONDS ?= 60
ARGS ?=
PEERS ?=
PREFIX ?= /usr/local

.PHONY: help setup setup-tests build services samples install deb demo test test-package test-unit quick test-peers soak fuzz bench book clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

demo: services ## two hosts and a node between them, real traffic (ARGS=--json for a document)
	@$(TAM) demo $(ARGS)

test: setup-tests ## format, lints, tidy and every test; the last line sums them up
	@tools/test.sh

quick: ## format, lints, tidy and the tests of what differs from the last commit (ARGS=REVISION for another), and of what depends on it
	@$(RUST) CARGO_INCREMENTAL=$${CARGO_INCREMENTAL-1} cargo xtask quick $(ARGS)

test-peers: setup-tests ## only the tests with other people's programs: ping, curl, iperf3; associations in Python, registries, cosign, a Go filter (PEERS=NAME for one)
	@tools/test-peers.sh $(PEERS)

bench: services ## every benchmark in its quick form, at most 45 s each
	@for name in $(BENCHES); do $(ROOT) $(TAM) bench $$name --quick $(ARGS) || exit; done

soak: setup-tests services ## 1,000 compile bombs, 100 kills, 1,000 of a ledger's writer, 100,000 histories of placement and random modules, 10,000,000 random packets, a million lies, forgeries and replays, 6,000 clients of streams, fuzz targets, then the demo for SOAK_MINUTES (30)
	@SOAK_MINUTES=$(SOAK_MINUTES) tools/soak.sh

fuzz: services ## every fuzz target for FUZZ_SECONDS (60), guided where a nightly Rust and cargo-fuzz are
	@tools/fuzz.sh $(FUZZ_SECONDS)

book: ## the documents as a site with search, target/book/html/index.html
	@tools/book.sh

# Of the whole workspace: with its features, what is built here is what the tests build.
build: setup ## the release binary, target/release/tam
	@$(RUST) cargo build --release --workspace --bin tam

services: build ## the sample services as WebAssembly
	@$(RUST) for name in monitor touch firewall nat guard guard-limit flakeway; do $(TAM) build services/$$name || exit; done

# Builds nothing, so that it can run as root after `make services` without.
install: ## tam, manual pages, completions and the sample services below PREFIX (/usr/local), after make samples
	@tools/install.sh "$(DESTDIR)$(PREFIX)"

deb: samples ## the Debian package, target/debian/tamandua_VERSION_amd64.deb; needs cargo-deb
	@tools/deb.sh

test-package: ## installs, runs, upgrades, removes and purges the package in a fresh Debian, and counts what is left; needs mmdebstrap
	@$(ROOT) tools/test-package.sh

test-unit: ## boots the package's unit under systemd in an emulated machine; needs mmdebstrap and qemu
	@$(ROOT) tools/test-unit.sh

samples: services ## the sample services that demo and bench do without, too: echo, compress, reflector, transcode
	@$(RUST) for name in echo compress reflector transcode; do $(TAM) build services/$$name || exit; done

setup: ## installs what is missing (Debian, Ubuntu) or names it
	@tools/setup.sh

setup-tests:
	@tools/setup.sh --tests

clean: ## removes everything that was built
	@rm -rf target services/*/target sdk/*/target services/*/*.wasm lab/fuzz/target
