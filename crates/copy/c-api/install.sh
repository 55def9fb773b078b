#!/bin/sh
# Installs libunlade_copier: headers, libraries, pkg-config and CMake files, and manual.
#   install.sh [--prefix DIR] [--libdir DIR] [--libraries DIR]
# DIR of --libdir is relative to the prefix (default: lib).
# DIR of --libraries contains libunlade_copier.so and .a (default: target/release).
# DESTDIR is a prefix of every path, for packagers.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
prefix=/usr/local
libdir=lib
libraries=$here/../../../target/release
soname=libunlade_copier.so.0
version=$(sed -n 's/^.define COPIER_VERSION_[A-Z]* \([0-9]*\)$/\1/p' \
    "$here/include/unlade/copier.h" | paste -sd.)
# Libraries for static linking: output of `rustc --print native-static-libs`.
libs_private='-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc'

usage() {
    echo "usage: install.sh [--prefix DIR] [--libdir DIR] [--libraries DIR]" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
        --prefix) [ $# -ge 2 ] || usage; prefix=$2; shift 2 ;;
        --prefix=*) prefix=${1#*=}; shift ;;
        --libdir) [ $# -ge 2 ] || usage; libdir=$2; shift 2 ;;
        --libdir=*) libdir=${1#*=}; shift ;;
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

case $libdir in
    '' | /* | *..* | */) echo "install.sh: --libdir $libdir: give a path below the prefix" >&2; exit 2 ;;
esac
# From the directory of the libraries to the prefix: one ".." for each component.
to_prefix=$(printf '%s' "$libdir" | sed 's|[^/][^/]*|..|g')

fill() { # TEMPLATE FILE
    sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$libdir|" -e "s|@TO_PREFIX@|$to_prefix|" \
        -e "s|@VERSION@|$version|" -e "s|@SONAME@|$soname|" -e "s|@LIBS_PRIVATE@|$libs_private|" \
        -e "s|@LIBS_PRIVATE_NAMES@|$(printf '%s' "$libs_private" | sed 's|-l||g; s| |;|g')|" \
        "$here/$1" >"$2"
    chmod 644 "$2"
}

root=${DESTDIR:-}$prefix
lib=$root/$libdir
mkdir -p "$root/include/unlade" "$lib/pkgconfig" "$lib/cmake/unlade-copier" "$root/share/man/man3"
install -m 644 "$here/include/unlade/copier.h" "$root/include/unlade/copier.h"
install -m 644 "$here/include/unlade/copier.hpp" "$root/include/unlade/copier.hpp"
install -m 755 "$libraries/libunlade_copier.so" "$lib/libunlade_copier.so.$version"
ln -sf "libunlade_copier.so.$version" "$lib/$soname"
ln -sf "$soname" "$lib/libunlade_copier.so"
install -m 644 "$libraries/libunlade_copier.a" "$lib/libunlade_copier.a"
install -m 644 "$here/man/unlade_copier.3" "$root/share/man/man3/unlade_copier.3"
fill unlade-copier.pc.in "$lib/pkgconfig/unlade-copier.pc"
fill cmake/unlade-copierConfig.cmake.in "$lib/cmake/unlade-copier/unlade-copierConfig.cmake"
fill cmake/unlade-copierConfigVersion.cmake.in \
    "$lib/cmake/unlade-copier/unlade-copierConfigVersion.cmake"
