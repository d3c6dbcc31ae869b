# Hopback. `make` alone says what there is.

# The versions of RabbitMQ that the tests run on, each in turn: 3.10, 4.0 and 4.3
# where they are there or can be set up, else "any" one that is.
BROKERS ?= $(shell scripts/setup.sh versions)

# Given to `hopback demo`, for example ARGS="--output json".
ARGS ?=

# Given to every `go test`, for example GOTEST="-run Parking -v".
GOTEST ?=

GOFUMPT     := mvdan.cc/gofumpt@v0.12.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# The packages of the library with tests on a real broker: those whose tests import
# rabbittest. They have tests without one too, which run again with them. The one
# that takes longest comes first, so that the others run beside it.
REAL = ./rabbittest $(filter-out ./rabbittest,$(patsubst %/,%,$(sort $(dir $(filter-out ./integration/% ./cmd/%,\
	$(shell grep -rl --include='*_test.go' '"github.com/hopback/hopback/rabbittest"' .))))))

# Every folder with a go.mod is a module of its own; the library is the root.
MODULES = $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path '*/node_modules/*' -not -path './dist/*' | sort))

# The race detector needs a C compiler.
RACE := $(shell [ "$$(go env CGO_ENABLED 2>/dev/null)" = 1 ] && command -v "$$(go env CC)" >/dev/null && echo -race)

# What has no other result over native: it is not the library's consumer, or names
# its mechanism.
NOTNATIVE := Router|RichFailure|Clients|Replay|Parking|Plugin|Linear|Capabilit|Example|Delayed

.DEFAULT_GOAL := help
.NOTPARALLEL: # many brokers and tests side by side are too much for two processors
.PHONY: help demo test unit integration soak bench lint docs clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## The whole story on a private broker, in under a minute
	@scripts/setup.sh demo
	@cd cmd/hopback && go run . demo $(ARGS)

test: unit integration ## Every test, on each version of RabbitMQ: BROKERS="3.10 4.0 4.3"

# In the library what needs a broker is skipped here: it runs with the integration
# tests, on each version. The command's tests run on any one broker, and without the
# race detector, with which the simulator takes ten times as long.
unit: ## Unit, property and example tests of every module
	@scripts/setup.sh demo
	@failed=; \
	for m in $(filter-out ./integration,$(MODULES)); do \
		echo "== unit tests: $$m"; \
		[ $$m = . ] && HOPBACK_TEST_BROKER=none || HOPBACK_TEST_BROKER=; export HOPBACK_TEST_BROKER; \
		race=$(RACE); [ $$m != ./cmd/hopback ] || race=; \
		(cd $$m && go test $$race -timeout 15m $(GOTEST) ./...) || failed="$$failed $$m"; \
	done; \
	[ -z "$$failed" ] || { echo "unit tests failed in:$$failed" >&2; exit 1; }

# With the race detector on the last version alone: it doubles what the processors
# have to do, and finds the same on each.
integration: ## Tests on real brokers, each of BROKERS in turn
	@scripts/setup.sh $(BROKERS)
	@scripts/clients.sh
	@failed=; \
	for v in $(BROKERS); do \
		echo "== RabbitMQ $$v"; \
		[ $$v = any ] && HOPBACK_TEST_BROKER= || HOPBACK_TEST_BROKER=$$v; export HOPBACK_TEST_BROKER; \
		[ $$v = $(lastword $(BROKERS)) ] && race=$(RACE) || race=; \
		go test -p 4 $$race -count=1 -timeout 15m $(GOTEST) $(REAL) || failed="$$failed library($$v)"; \
		[ ! -e integration/go.mod ] || (cd integration && go test -count=1 -timeout 20m $(GOTEST) ./...) || failed="$$failed integration($$v)"; \
		case $$v in 4.3*) \
			echo "== RabbitMQ $$v: the core's tests over native"; \
			(cd integration && HOPBACK_TEST_MECHANISM=native go test -count=1 -timeout 20m -skip '$(NOTNATIVE)' $(GOTEST) .) || failed="$$failed native($$v)";; \
		esac; \
	done; \
	[ -z "$$failed" ] || { echo "tests failed in: $$failed" >&2; exit 1; }

soak: ## The long tests under faults, for hours, each of BROKERS in turn
	@scripts/setup.sh $(BROKERS)
	@cd integration && for v in $(BROKERS); do \
		echo "== RabbitMQ $$v"; \
		[ $$v = any ] && HOPBACK_TEST_BROKER= || HOPBACK_TEST_BROKER=$$v; export HOPBACK_TEST_BROKER; \
		HOPBACK_SOAK=1 go test -count=1 -timeout 24h -v $(GOTEST) ./... || exit 1; \
	done

bench: ## Measure, and print the table of figures
	@scripts/setup.sh demo
	@cd integration && go run ./bench $(ARGS)

lint: ## Formatting, vet and staticcheck in every module
	@failed=; \
	for m in $(MODULES); do \
		echo "== lint: $$m"; \
		(cd $$m && \
			odd=$$(go run $(GOFUMPT) -l .) && \
			{ [ -z "$$odd" ] || { printf 'not formatted by gofumpt:\n%s\n' "$$odd"; false; }; } && \
			go vet ./... && \
			go run $(STATICCHECK) ./...) || failed="$$failed $$m"; \
	done; \
	[ -z "$$failed" ] || { echo "lint failed in:$$failed" >&2; exit 1; }

docs: ## Make the pictures of the documentation, and check that its links lead somewhere
	@cd cmd/hopback && go run . simulate --pictures ../../docs/pictures
	@scripts/check-links.sh

clean: ## Remove what was built; the brokers of scripts/setup.sh stay
	rm -rf bin dist
	find . -name '*.test' -type f -delete
	rm -rf "$${HOPBACK_BROKERS:-$${XDG_CACHE_HOME:-$$HOME/.cache}/hopback/brokers}"/*.partial
