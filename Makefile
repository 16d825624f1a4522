# Pagurus. The two commands of a fresh machine are "make demo" and "make test".
PREFIX  ?= /usr/local
VERSION ?= $(shell git describe --always --dirty 2>/dev/null || echo unknown)
GOFLAGS_BUILD = -trimpath -ldflags "-s -w -X main.version=$(VERSION)"

# The pure and scenario rings: no root, no machine but this one's processor.
all: build check pure

build: bin/pagurus bin/pagurus-controller bin/pagurus-guest bin/pagurus-page bin/pagurus-probe bin/pagurus-shim

# What go puts into the binaries: code, and files that it embeds.
SOURCES = $(shell find . -name '*.go' -not -name '*_test.go' -o -name '*.c' -o -name '*.h' -o -name '*.asm' -o -name '*.bin' -o -name '*.sh' -o -name '*.melt' -o -name '*.html') go.mod go.sum

bin/pagurus: $(SOURCES)
	go build $(GOFLAGS_BUILD) -o $@ ./cmd/pagurus

bin/pagurus-controller: $(SOURCES)
	go build $(GOFLAGS_BUILD) -o $@ ./cmd/pagurus-controller

bin/pagurus-guest: $(SOURCES)
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o $@ ./cmd/pagurus-guest

bin/pagurus-page: $(SOURCES)
	go build $(GOFLAGS_BUILD) -o $@ ./cmd/pagurus-page

bin/pagurus-probe: $(SOURCES)
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o $@ ./cmd/pagurus-probe

bin/pagurus-shim: $(SOURCES)
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o $@ ./cmd/pagurus-shim

check:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "gofmt these: $$unformatted"; exit 1; }
	go vet ./...

pure:
	go test -short ./...

# The contract and system rings share one machine, so packages run one by one but
# for those that keep to namespaces and folders of their own.
# A skipped test that this machine could have run is a failure.
test: setup build check
	scripts/rings

setup:
	scripts/setup

demo: setup build
	bin/pagurus demo

bench: setup build
	scripts/bench

# What borrowing costs owners, and what owners cost jobs: at least ten runs count.
bench-owner: setup build
	scripts/bench -only owner -repeat 10 -o dist/bench-owner.json

# A thousand faults while guests move: make chaos CHAOS="--faults 50 --seed 7".
chaos: setup build
	scripts/chaos $(CHAOS)

docs: build
	mkdir -p dist/man dist/completion
	bin/pagurus man dist/man
	for shell in bash zsh fish; do bin/pagurus completion $$shell > dist/completion/pagurus.$$shell; done

install: build docs
	for part in -controller -guest -page -probe -shim ""; do install -Dm755 bin/pagurus$$part $(DESTDIR)$(PREFIX)/bin/pagurus$$part || exit; done
	install -Dm644 dist/completion/pagurus.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/pagurus
	install -Dm644 dist/completion/pagurus.zsh $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_pagurus
	install -Dm644 dist/completion/pagurus.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/pagurus.fish
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m644 dist/man/* $(DESTDIR)$(PREFIX)/share/man/man1/

clean:
	rm -rf bin dist

.PHONY: all build check pure test setup demo bench bench-owner chaos docs install clean
