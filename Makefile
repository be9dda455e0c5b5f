# What a newcomer needs: `make bake` and `make test`. `make check` is what CI runs.

PYTHON ?= python3
ANEBAKE := target/release/anebake
VENV_PYTHON := .venv/bin/python

.PHONY: bake test check setup setup-dev build lint macos-check probe golden golden-check schema bench

## Set up, build, bake the sample model (30 int8 packages and the ends of the chain in ./out), judge it, let it speak.
bake: build
	$(ANEBAKE) convert --recipe int8-v1 --model sample --out out
	$(ANEBAKE) run out --prompt "The capital of France is" --max-tokens 24

## Set up, build, and run all tests; those of full and read-only disks where this user may mount one.
test: setup-dev cargo
	cargo test --release
	@mkdir -p target/tmp/mount; \
	if [ "$$(id -u)" != 0 ]; then \
	  cargo test --release --test main -- --ignored unprivileged; \
	elif mount -t tmpfs tmpfs target/tmp/mount 2>/dev/null; then \
	  umount target/tmp/mount && cargo test --release -- --ignored tmpfs; \
	else \
	  echo "tests of full and read-only disks are left out: this user may not mount a tmpfs"; \
	fi

## Everything that CI checks.
check: setup-dev cargo lint macos-check golden-check test

setup:
	$(PYTHON) tools/setup.py

setup-dev:
	$(PYTHON) tools/setup.py --dev

build: setup cargo
	cargo build --release

.PHONY: cargo
cargo:
	@command -v cargo >/dev/null || { echo "anebake: error: cargo is not installed" >&2; \
	  echo "  hint: see https://rustup.rs" >&2; exit 3; }

lint: setup-dev cargo
	cargo fmt --check
	cargo clippy --release --all-targets -- -D warnings
	.venv/bin/ruff check python tools tests benches
	.venv/bin/ruff format --check python tools tests benches
	.venv/bin/mypy

## Type-check and lint the code for macOS, on any system.
macos-check: setup-dev cargo
	$(VENV_PYTHON) tools/macos_check.py

## Find out which graphs this Mac's Neural Engine takes; anywhere else: make the packages and check them.
RESULTS ?= probe-results.json
probe: build
	$(ANEBAKE) probe ladder --results $(RESULTS)

## Rewrite, or check, what the tests compare with and coremltools decides.
golden: setup-dev
	$(VENV_PYTHON) tests/golden/quant/make_golden.py

golden-check: setup-dev
	$(VENV_PYTHON) tests/golden/quant/make_golden.py --check

## Rewrite schemas/recipe.schema.json.
schema: setup cargo
	UPDATE_SCHEMA=1 cargo test --release --lib recipe_schema

## Measure: a full-size checkpoint, every road, one run.
bench: build setup-dev
	$(PYTHON) benches/compare.py
