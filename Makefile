# Quell: one command per thing that a user or a developer wants. `make` alone lists them.

CARGO      ?= cargo
# Builds and tests use the committed lock file and nothing else.
CARGO_LOCK ?= --locked
QUELL      := target/release/quell
# What `make demo` runs: one real service beside busy loops, for about a minute.
DEMO       := $(QUELL) bench services --quick --brief --service memcached --json bench/results/demo.json
# The figures that the docs quote: every benchmark, at full length.
BENCHES    := services client wake-cost overhead overload three-services reaction mechanism why check view lanes net net-figures runtime runtime-colocate sim sim-host validation wasted-cores

.DEFAULT_GOAL := help
.PHONY: help setup build deb demo test test-all test-unit test-ignored test-peers test-deb test-crash test-vm soak validate defects fuzz miri bench docs lint clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install what is missing (Debian packages, and simulators to compare with into target/; needs root or sudo the first time)
	@scripts/setup.sh

build: ## Build target/release/quell, and the antagonist programs beside it
	$(CARGO) build --release --workspace --bins $(CARGO_LOCK)

deb: setup build ## Build the Debian package: target/debian/quell_VERSION_ARCH.deb
	@scripts/package/deb.sh

demo: setup build ## Set up, build, and show a service beside batch work, Quell beside plain Linux
	@mkdir -p bench/results
	$(DEMO)

test: export QUELL_VM_QUICK ?= 1
test: CRASH_DEATHS := 20
test: setup test-unit test-crash test-vm ## Run the tests: on this host, busy or not, then the quick ones of test-vm (QUELL_VM_QUICK=0: all)

# Of a value that was given, that one counts.
test-all: export QUELL_VM_QUICK := 0
test-all: CRASH_DEATHS := 200
test-all: setup test-ignored test-peers test-deb test-crash test-vm ## Run all tests: also those that need a quiet host or take long, and each guest (for hours; docs/lab/testing.md)

# All that tests run, built once: cargo chooses features by what a command names, and would build most of it again
# for another choice of packages or targets.
BUILD_TESTS := $(CARGO) test --workspace --no-run $(CARGO_LOCK)
# Prints the time of a step and its slowest tests.
STEP := scripts/test/step.sh
TIMED := --config 'target."cfg(all())".runner=["$(CURDIR)/scripts/test/timed.sh"]'
RUN_TESTS := QUELL_TESTS_BUILT=1 $(CARGO) test --workspace $(CARGO_LOCK) $(TIMED)

test-unit: ## Run the tests of this host only
	@$(STEP) "build the tests" $(BUILD_TESTS)
	@$(STEP) "tests of this host" env $(RUN_TESTS)

# Modules `helper` are programs that tests start, modules `soak` belong to `make soak`.
test-ignored: ## Run the tests of this host, also those that need a quiet one or take long
	@$(STEP) "build the tests" $(BUILD_TESTS)
	@$(STEP) "all tests of this host" env QUELL_CRASH_DEATHS=$(CRASH_DEATHS) $(RUN_TESTS) -- --include-ignored --skip helper:: --skip soak::

test-peers: ## Decode our traces with Perfetto's own definitions, which take minutes to compile
	@$(STEP) "peers" $(CARGO) test --manifest-path peers/perfetto/Cargo.toml --target-dir target/peers $(CARGO_LOCK)

test-deb: ## Install and purge the Debian package, and run the service, in a small Debian system (QUELL_SKIP_DEB=1 skips)
	@$(STEP) "build the tests" $(BUILD_TESTS)
	@$(STEP) "build the programs" $(CARGO) build --workspace --bins $(CARGO_LOCK)
	@$(STEP) "Debian package" scripts/test/deb.sh
	@$(STEP) "service" scripts/test/service.sh

# The tests' own stand-in for the daemon is part of test-unit. Points to stop at are in debug builds alone.
CRASH_QUELL := $(CURDIR)/target/debug/quell
CRASH_DEATHS ?= 200
test-crash: ## Kill a real `quell run` in every way at every point, and CRASH_DEATHS (200) times at random: the host is as it was
	@$(STEP) "build the tests" $(BUILD_TESTS)
	@QUELL_CRASH_DEATHS=$(CRASH_DEATHS) \
	QUELL_CRASH_RUN="$(CURDIR)/scripts/test/crash-run.sh $(CRASH_QUELL) {run} {seed} {pids}" \
	QUELL_CRASH_RELEASE="env QUELL_RUN_DIR={run} $(CRASH_QUELL) restore" \
		$(STEP) "kills of a real daemon" env $(RUN_TESTS) --test guardian_crash

test-vm: ## Test in virtual machines: 8 cores with hyperthreads, and the 16 of "Wasted Cores" on Linux 6.1 and 6.12 (QUELL_VM_QUICK=1: the first only; QUELL_SKIP_VM=1: none)
	@$(STEP) "virtual machines" scripts/vm/test.sh

validate: ## Make anew what tests compare with real kernels: the scheduling domains that Linux 6.1 and 6.12 build, and where they keep CPU hogs (QEMU, 40 minutes)
	scripts/vm/domains.sh crates/trace/src/lint/golden
	scripts/vm/placement.sh crates/sim/tests/placement

SOAK_SECONDS ?= 1200
# One test after the other: they measure memory, and each is to have the machine for itself.
SOAK := $(CARGO) test --release --workspace $(CARGO_LOCK)
soak: ## The runtime at full count, optimised: a million uthreads at once (6 GB), ten million started and joined, a day of time-outs, ten thousand lives of virtual sockets, SOAK_SECONDS (1200) interrupted anywhere; then three services under random loads for SOAK_SECONDS in each of three arms (needs root)
	$(SOAK) --test limits -- --ignored --nocapture --exact soak::a_million_uthreads_exist_at_once
	$(SOAK) --test limits -- --ignored --nocapture --exact soak::ten_million_uthreads_that_come_and_go_leak_nothing
	$(SOAK) --test limits -- --ignored --nocapture --exact soak::a_days_timeouts_leave_nothing_behind
	QUELL_NET_SEEDS=10000 $(CARGO) test --release $(CARGO_LOCK) -p quell-net-engine --test it random::
	QUELL_SOAK_SECONDS=$(SOAK_SECONDS) $(SOAK) --test preemption -- --nocapture --exact the_soak_finds_no_corruption_no_deadlock_and_no_leak
	@$(STEP) "build" $(CARGO) build --release --bins $(CARGO_LOCK)
	target/release/quell bench three-services --judge --seconds $(SOAK_SECONDS) --json target/soak-three-services.json

FUZZ_SECONDS ?= 300
FUZZ_TARGETS := perfetto ftrace wasted_cores replay decisions hints runtime requests replies updates net_frames net_hello net_messages net_packets net_ring
fuzz: ## Feed random input to every parser of traces, shared pages and subscriptions, FUZZ_SECONDS each (needs nightly Rust and cargo-fuzz)
	@for target in $(FUZZ_TARGETS); do \
		mkdir -p fuzz/target/corpus/$$target; \
		$(CARGO) +nightly fuzz run $$target fuzz/target/corpus/$$target fuzz/corpus/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=1024 || exit; \
	done

# Loom's models switch stacks and most else calls the kernel: Miri can do neither. What it runs are these, with threads of its own.
MIRI := MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance" $(CARGO) +nightly miri test $(CARGO_LOCK) --lib
defects: ## Plant eighteen defects in the engine of virtual sockets, one after the other: its random lives have to find each (minutes)
	scripts/defects/run.py

miri: ## Run the lock-free protocols, timers and layouts of shared memory under Miri (needs nightly Rust with miri)
	$(MIRI) -p quell-runtime -- with_threads:: queue::tests::a_ timers_that load::
	$(MIRI) -p quell-shm -- a_grant_holds a_header_reads

# Without it `quell bench client` says what it leaves out.
target/peers/vegeta:
	-GOBIN=$(CURDIR)/target/peers go install github.com/tsenart/vegeta/v12@v12.12.0

# QUIC (quinn) and multiplexed TCP (yamux): without them `quell bench net` says what it leaves out.
target/peers/release/quell-peer-net: $(wildcard peers/net/src/*.rs) peers/net/Cargo.toml
	-$(CARGO) build --release --manifest-path peers/net/Cargo.toml --target-dir target/peers $(CARGO_LOCK)

bench: setup build test-peers target/peers/vegeta target/peers/release/quell-peer-net ## Run every benchmark at full length into bench/results/
	$(CARGO) build --release -p quell-runtime --example keyvalue $(CARGO_LOCK)
	@mkdir -p bench/results
	@for name in $(BENCHES); do \
		echo "$(QUELL) bench $$name --json bench/results/$$name.json"; \
		$(QUELL) bench $$name --json bench/results/$$name.json || exit; \
	done

docs: ## Build the reference of all crates (target/doc)
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps $(CARGO_LOCK)

lint: ## Check format, Rust lints, shell scripts, lines, words and links
	$(CARGO) fmt --all --check
	$(CARGO) fmt --check --manifest-path peers/perfetto/Cargo.toml
	$(CARGO) fmt --check --manifest-path peers/net/Cargo.toml
	python3 -B -m unittest discover --quiet --start-directory scripts/lint
	scripts/lint/lines.py
	scripts/lint/vocabulary.py
	scripts/lint/links.py
	scripts/lint/assertions.py --enforce
	scripts/defects/run.py --check
	$(CARGO) clippy --workspace --all-targets $(CARGO_LOCK) -- -D warnings
	$(CARGO) check --manifest-path fuzz/Cargo.toml --target-dir target $(CARGO_LOCK)
	shellcheck -x .ci/run scripts/vm/init packaging/debian/p* $$(git ls-files '*.sh')

clean: ## Remove everything that was built or fetched
	$(CARGO) clean
	rm -rf .vm
