# One verb each. demo, test, build and bench first install what they need (Debian 12, tools/setup).
.PHONY: demo test build install bench check fuzz carry gpu format
.DEFAULT_GOAL := build
MAKEFLAGS += --no-print-directory
JOBS := $(shell nproc)
PREFIX ?= /usr/local

# Trains a small GPT on a dictionary of English, or on TEXT=FILE.
demo: build
	@tools/demo $(if $(TEXT),"$(TEXT)")

# Release build and every test.
test:
	@tools/setup
	@cmake --preset release
	@cmake --build build/release --parallel $(JOBS)
	@ctest --preset release

# build/release/strait, without the tests.
build:
	@tools/setup
	@cmake --preset release
	@cmake --build build/release --parallel $(JOBS) --target strait

# Program, libraries, headers and docs into PREFIX.
install: build
	@cmake --install build/release --prefix $(PREFIX)

# Speed against bounds and peers, in one run.
bench:
	@tools/setup --peers
	@cmake --preset release
	@cmake --build build/release --parallel $(JOBS) --target strait
	@tools/bench

# What a machine without network needs to build and test, in build/carry/: see tools/carry.
carry:
	@tools/setup
	@tools/carry

# Builds with PyTorch's wheel (TORCH=2.7.1; the newest unless told), for CUDA where it has it, and runs the tests on
# the processor: see tools/gpu and docs/gpu.md.
gpu:
	@tools/setup
	@tools/gpu $(TORCH)

# Everything that a change must pass beyond the tests: see tools/check.
check:
	@tools/check

# Every parser on damaged input for MINUTES in all (10 unless told), with clang: see tools/fuzz.
fuzz:
	@tools/setup --fuzz
	@tools/fuzz $(or $(MINUTES),10)

format:
	@git ls-files '*.cpp' '*.h' | xargs clang-format -i
