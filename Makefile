# The two commands of the project are `make demo` and `make test`.
export PATH := $(PATH):/usr/sbin:/sbin:$(HOME)/.cargo/bin

.PHONY: help setup build demo check test nightly redis-tests debian-programs s3-tests mint samples runtimes fmt clean-lab

help:
	@echo 'make demo       install what is missing, build, compare offload with proxies in a lab'
	@echo 'make test       install what is missing, then every check and every test'
	@echo 'make nightly    the long suites: kills, random sessions, soaks, every guest case (hours)'
	@echo 'make redis-tests, make debian-programs    two of them: tests that others wrote'
	@echo 'make s3-tests   tests of Ceph against the built-in store'
	@echo 'make mint       suites of MinIO, with its SDKs and others, against the built-in store'
	@echo 'make samples    handlers of AWS'"'"'s serverless-patterns, unmodified, with and without offload (minutes)'
	@echo 'make runtimes   functions in Go, Rust, Node.js and Python with packages of AWS (minutes)'
	@echo 'make check      the quick checks, without root: format, lints, unit tests of what changed'
	@echo 'make build      build the release binary, target/release/unlade'
	@echo 'make fmt        format the sources'
	@echo 'make clean-lab  stop every lab and remove what it left'

setup:
	@scripts/setup

build:
	cargo build --release -p unlade -p unlade-lab

demo: setup build
	scripts/demo

check:
	@scripts/check

test:
	@scripts/setup --with-deny --with-mdbook
	@scripts/test

nightly:
	@scripts/setup
	@scripts/nightly

redis-tests:
	@scripts/redis-tests

debian-programs:
	@scripts/debian-programs

s3-tests:
	@scripts/s3-tests

mint:
	@scripts/mint

samples:
	@scripts/samples

fmt:
	cargo fmt --all

clean-lab:
	cargo run --quiet --release -p unlade-lab -- down --all

runtimes:
	cargo test -p system-tests --test functions_runtimes --test functions_node -- --ignored
