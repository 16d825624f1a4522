# Pagurus. The two commands of a fresh machine are "make demo" and "make test".
PREFIX  ?= /usr/local
# Where python3 looks below PREFIX.
PYTHONDIR ?= $(shell PATH=/usr/bin:$$PATH python3 -Ic 'import site; p = "$(PREFIX)/lib/python"; print(next((d for d in site.getsitepackages() if d.startswith(p)), p + "3/dist-packages"))' 2>/dev/null || echo $(PREFIX)/lib/python3/dist-packages)
VERSION ?= $(shell git describe --always --dirty 2>/dev/null || echo unknown)
GOFLAGS_BUILD = -trimpath -ldflags "-s -w -X main.version=$(VERSION)"

## all: builds, checks, and runs every test that is quick: no root, under a minute (the default)
all: build check pure quick

## build: the binaries, in bin/
build: bin/pagurus bin/pagurus-agent bin/pagurus-controller bin/pagurus-guest bin/pagurus-shim bin/pagurus-daemon

# What go puts into the binaries: code, and files that it embeds.
SOURCES = $(shell find . -name '*.go' -not -name '*_test.go' -o -name '*.c' -o -name '*.h' -o -name '*.asm' -o -name '*.bin' -o -name '*.sh' -o -name '*.melt' -o -name '*.html' -o -path './show/page/files/*' -o -name openapi.json -o -path './act/libpagurus/*') go.mod go.sum

bin/pagurus: $(SOURCES)
	go build $(GOFLAGS_BUILD) -o $@ ./cmd/pagurus

bin/pagurus-agent: $(SOURCES)
	go build $(GOFLAGS_BUILD) -o $@ ./cmd/pagurus-agent

bin/pagurus-controller: $(SOURCES)
	go build $(GOFLAGS_BUILD) -o $@ ./cmd/pagurus-controller

bin/pagurus-guest: $(SOURCES)
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o $@ ./cmd/pagurus-guest

bin/pagurus-shim: $(SOURCES)
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o $@ ./cmd/pagurus-shim

bin/pagurus-daemon: $(SOURCES)
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o $@ ./cmd/pagurus-daemon

## check: what reads the code without running it (gofmt, vet, staticcheck, spelling)
check:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "gofmt these: $$unformatted"; exit 1; }
	go vet ./...
	go tool staticcheck ./...
	@go tool misspell -error -i rela,ther $$(git ls-files '*.go' '*.md' '*.c' '*.h' '*.txtar' Makefile scripts)

## help: this list
help:
	@sed -n 's/^## \([a-z0-9-]*\): /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name says; do printf 'make %-15s %s\n' "$$name" "$$says"; done

# The pure and scenario rings: what decides, computes and shows, without the machine.
PURE = ./fleet/... ./decide/... ./sim/... ./show/view ./bench/stats ./bench/noise ./bench/timeline

## pure: the pure and scenario rings only, with the race detector: seconds
# Most of the time is linking. A sixth of that is tables for a debugger, which are left out. A program with
# the race detector waits for a second at its end, if it is not told otherwise. A tenth of the rest is
# the collection of garbage, for which there is no need. What vet says make check says.
pure:
	GOGC=400 GORACE=atexit_sleep_ms=0 go test -race -short -vet=off -ldflags='-s -w' $(PURE)

## quick: the short tests of all other packages
quick:
	@pure=$$(go list $(PURE)) && go list ./... | grep -vxF "$$pure" | xargs go test -short -vet=off

## race: the short tests of all packages, with the race detector
race:
	GORACE=atexit_sleep_ms=0 go test -race -short -vet=off -ldflags='-s -w' ./...

## test: sets up this machine and runs every ring but the long tests, machines and bench
# The contract and system rings share one machine, so packages run one by one but
# for those that keep to namespaces and folders of their own.
# A skipped test that this machine could have run is a failure.
test: setup build check bin/versitygw bin/promtool
	scripts/rings

## test-long: tests that walk through every fault, build other versions, or move machines for minutes
test-long: setup build bin/versitygw
	scripts/chromium
	scripts/rings --long

bin/versitygw:
	scripts/s3server

bin/promtool:
	scripts/promtool

## test-debian13: the same in the user land of Debian 13, on this machine's kernel
# What came of it is kept in docs/figures/debian13.txt. Some packages only:
# make test-debian13 RINGS="./act/share ./act/image"
test-debian13:
	scripts/test-debian13 $(RINGS)

## test-kvm: virtual machines on KVM with a kernel, KERNEL=FILE; also WORDS="…" for its command line, CPU=… that guests see, PART=… of scripts/test-kvm
test-kvm: build
	WORDS="$(WORDS)" CPU="$(CPU)" scripts/test-kvm "$(KERNEL)" $(PART)

## test-machines: emulated machines install the packages, become a cluster, and fail in all ways
# It takes all of this machine for up to 30 minutes; the result is in docs/figures/machines.txt.
# The shortest of it, on two: make test-machines RING=two
# Guests of Xen on three, of which two are Xen hosts: make test-machines RING=xen
test-machines: setup packages bin/versitygw
	scripts/test-machines $(RING)

## setup: installs what this machine lacks
setup:
	scripts/setup

## demo: sets up, builds, and shows it all on this machine
# On a fresh machine most of it is waiting for the network and compiling: both at
# once. Only what builds the image is needed for the image.
demo: setup bin/pagurus
	@rm -f bin/.image; { bin/pagurus image build lammps 2>&1 && : >bin/.image; } | sed -u 's/^/image: /' & \
	$(MAKE) --no-print-directory build; built=$$?; wait; \
	test $$built -eq 0 && test -e bin/.image && rm bin/.image
	bin/pagurus demo

## bench: measures what is promised, with every sample in dist/bench.json
bench: setup packages
	scripts/bench

## bench-owner: what borrowing costs owners, and what owners cost jobs
bench-owner: setup build
	scripts/bench -only owner -repeat 10 -o dist/bench-owner.json

## bench-guard: figures that matter, each in turn with the commit of its record: has one got worse?
# Forty minutes on two CPUs; the table is in dist/bench-guard.txt. A part, added to what dist has of others:
# make bench-guard GUARD="-only stall -add"
bench-guard: build
	scripts/bench -guard $(GUARD)

## fuzz: every parser of what others wrote, five minutes each: make fuzz FUZZ=30s
fuzz:
	scripts/fuzz $(FUZZ)

## chaos: a thousand faults while guests move: make chaos CHAOS="--kind hosts --hosts 4 --faults 50 --seed 7"
chaos: setup build
	scripts/chaos $(CHAOS)

## docs: man pages and completion, in dist/
docs: build
	mkdir -p dist/man dist/completion
	bin/pagurus man dist/man
	for shell in bash zsh fish; do bin/pagurus completion $$shell > dist/completion/pagurus.$$shell; done

## packages: dist/*.deb and dist/*.rpm
packages: build docs
	rm -f dist/*.deb dist/*.rpm
	scripts/packages dist

## install: to PREFIX, /usr/local
install: build docs
	for part in -agent -controller -guest -shim ""; do install -Dm755 bin/pagurus$$part $(DESTDIR)$(PREFIX)/bin/pagurus$$part || exit; done
	install -Dm644 act/libpagurus/lib/libpagurus.so $(DESTDIR)$(PREFIX)/lib/libpagurus.so.0
	ln -sf libpagurus.so.0 $(DESTDIR)$(PREFIX)/lib/libpagurus.so
	install -Dm644 -t $(DESTDIR)$(PREFIX)/include act/libpagurus/lib/pagurus.h act/libpagurus/lib/pagurus.f90
	install -Dm644 -t $(DESTDIR)$(PYTHONDIR) act/libpagurus/lib/libpagurus.py
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed 's|^prefix=.*|prefix=$(PREFIX)|; s|^Libs:|Libs: -L$${prefix}/lib|' act/libpagurus/lib/pagurus.pc >$(DESTDIR)$(PREFIX)/lib/pkgconfig/pagurus.pc
	case "$(DESTDIR)$(PREFIX)" in /usr | /usr/local) ldconfig ;; esac
	install -Dm644 dist/completion/pagurus.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/pagurus
	install -Dm644 dist/completion/pagurus.zsh $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_pagurus
	install -Dm644 dist/completion/pagurus.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/pagurus.fish
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m644 dist/man/* $(DESTDIR)$(PREFIX)/share/man/man1/

## clean: removes bin/ and dist/
clean:
	rm -rf bin dist

.PHONY: all build help check pure quick race test test-long test-debian13 test-machines test-kvm setup demo bench bench-owner bench-guard fuzz chaos docs packages install clean
