#!/bin/sh
# Installs libunlade_copier: header, libraries, pkg-config file and manual.
#   install.sh [--prefix DIR] [--libraries DIR]
# DIR of --libraries contains libunlade_copier.so and .a (default: target/release).
# DESTDIR is a prefix of every path, for packagers.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
prefix=/usr/local
libraries=$here/../../../target/release
soname=libunlade_copier.so.0
version=$(sed -n 's/^.define COPIER_VERSION_[A-Z]* \([0-9]*\)$/\1/p' \
    "$here/include/unlade/copier.h" | paste -sd.)
# Libraries for static linking: output of `rustc --print native-static-libs`.
libs_private='-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc'

usage() {
    echo "usage: install.sh [--prefix DIR] [--libraries DIR]" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
        --prefix) [ $# -ge 2 ] || usage; prefix=$2; shift 2 ;;
        --prefix=*) prefix=${1#*=}; shift ;;
        --libraries) [ $# -ge 2 ] || usage; libraries=$2; shift 2 ;;
        --libraries=*) libraries=${1#*=}; shift ;;
        *) usage ;;
    esac
done

for library in libunlade_copier.so libunlade_copier.a; do
    if [ ! -f "$libraries/$library" ]; then
        echo "install.sh: $libraries/$library is missing; cargo build --release -p unlade-copy-capi" >&2
        exit 1
    fi
done

root=${DESTDIR:-}$prefix
mkdir -p "$root/include/unlade" "$root/lib/pkgconfig" "$root/share/man/man3"
install -m 644 "$here/include/unlade/copier.h" "$root/include/unlade/copier.h"
install -m 755 "$libraries/libunlade_copier.so" "$root/lib/libunlade_copier.so.$version"
ln -sf "libunlade_copier.so.$version" "$root/lib/$soname"
ln -sf "$soname" "$root/lib/libunlade_copier.so"
install -m 644 "$libraries/libunlade_copier.a" "$root/lib/libunlade_copier.a"
install -m 644 "$here/man/unlade_copier.3" "$root/share/man/man3/unlade_copier.3"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" -e "s|@LIBS_PRIVATE@|$libs_private|" \
    "$here/unlade-copier.pc.in" >"$root/lib/pkgconfig/unlade-copier.pc"
