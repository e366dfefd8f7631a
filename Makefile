# Each target first installs what it needs, or says what is missing
# (tests/setup.sh). Nothing is installed outside target/ and a cache, but by
# `install`.

.PHONY: help demo test check lab lab-shell bench fuzz install uninstall

help:
	@echo 'make demo       see it work, on a simulated host'
	@echo 'make test       all tests, those on a real kernel included'
	@echo 'make check      format, lints, documentation, licences, scripts, drift'
	@echo 'make lab        the tests on a real kernel alone'
	@echo 'make lab-shell  a shell in the lab, with the service running'
	@echo 'make bench      compare with raw writes, mdevctl and a C program'
	@echo 'make fuzz       fuzz what reads text from outside, a minute a target'
	@echo 'make install    install it: PREFIX=/usr/local DESTDIR='
	@echo 'make uninstall  take the installed files away again'

demo:
	@tests/setup.sh demo
	@tests/demo.sh

test:
	@tests/setup.sh test
	@tests/test.sh

check:
	@tests/setup.sh check
	@tests/check.sh

lab:
	@tests/setup.sh lab
	@tests/lab/run.sh

lab-shell:
	@tests/setup.sh lab
	@tests/lab-shell.sh

bench:
	@tests/setup.sh bench
	@tests/bench/run.sh

fuzz:
	@tests/setup.sh fuzz
	@tests/fuzz/run.sh

# Where the programs go, and where the system's own services look for files.
PREFIX ?= /usr/local
DESTDIR ?=
UNITDIR ?= /usr/lib/systemd/system
BUSDIR ?= /usr/share/dbus-1
POLKITDIR ?= /usr/share/polkit-1/actions
UDEVDIR ?= /usr/lib/udev/rules.d
TMPFILESDIR ?= /usr/lib/tmpfiles.d
MODULESDIR ?= /usr/lib/modules-load.d
# The Cargo profile: release, or dev.
PROFILE ?= release

install uninstall: export PREFIX := $(PREFIX)
install uninstall: export DESTDIR := $(DESTDIR)
install uninstall: export UNITDIR := $(UNITDIR)
install uninstall: export BUSDIR := $(BUSDIR)
install uninstall: export POLKITDIR := $(POLKITDIR)
install uninstall: export UDEVDIR := $(UDEVDIR)
install uninstall: export TMPFILESDIR := $(TMPFILESDIR)
install uninstall: export MODULESDIR := $(MODULESDIR)
install uninstall: export PROFILE := $(PROFILE)
install:
	@tests/setup.sh install
	@host/install.sh

uninstall:
	@host/install.sh --remove
