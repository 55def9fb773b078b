#!/bin/sh
# Makes Debian packages of libunlade_copier: libunlade-copier0 (the shared library) and
# libunlade-copier-dev (headers, static library, pkg-config and CMake files, manual, examples).
#   package-deb.sh [--libraries DIR] [--output DIR]
# DIR of --libraries contains libunlade_copier.so and .a (default: target/release), DIR of --output
# gets the packages (default: target/debian). SOURCE_DATE_EPOCH sets the times in the packages.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../../.." && pwd)
libraries=$root/target/release
output=$root/target/debian
runtime=libunlade-copier0
dev=libunlade-copier-dev

fail() {
    echo "package-deb.sh: $*" >&2
    exit 1
}
usage() {
    echo "usage: package-deb.sh [--libraries DIR] [--output DIR]" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
        --libraries) [ $# -ge 2 ] || usage; libraries=$2; shift 2 ;;
        --libraries=*) libraries=${1#*=}; shift ;;
        --output) [ $# -ge 2 ] || usage; output=$2; shift 2 ;;
        --output=*) output=${1#*=}; shift ;;
        *) usage ;;
    esac
done
for tool in dpkg-deb dpkg-shlibdeps dpkg-architecture strip; do
    command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install dpkg-dev binutils"
done

version=$(sed -n 's/^.define COPIER_VERSION_[A-Z]* \([0-9]*\)$/\1/p' \
    "$here/include/unlade/copier.h" | paste -sd.)
architecture=$(dpkg --print-architecture)
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
umask 022

# Everything goes to one tree first; then the shared library moves to the runtime package.
DESTDIR=$work/$dev "$here/install.sh" --prefix /usr --libdir "lib/$multiarch" \
    --libraries "$libraries"
mkdir -p "$work/$runtime/usr/lib/$multiarch"
mv "$work/$dev/usr/lib/$multiarch"/libunlade_copier.so.* "$work/$runtime/usr/lib/$multiarch/"
# Packages have libraries without symbols for debuggers, and that are not executable.
strip --strip-unneeded "$work/$runtime/usr/lib/$multiarch/libunlade_copier.so.$version"
chmod 644 "$work/$runtime/usr/lib/$multiarch/libunlade_copier.so.$version"
strip --strip-debug "$work/$dev/usr/lib/$multiarch/libunlade_copier.a"
gzip -9n "$work/$dev/usr/share/man/man3/unlade_copier.3"
examples=$work/$dev/usr/share/doc/$dev/examples
mkdir -p "$examples"
install -m 644 "$here"/examples/*.c "$here"/examples/*.cc "$here/examples/CMakeLists.txt" \
    "$examples"

# The packages of the C library and the compiler's runtime that the shared library needs.
mkdir "$work/debian"
echo "Source: unlade" >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O --ignore-missing-info \
    "$runtime/usr/lib/$multiarch/libunlade_copier.so.$version" 2>/dev/null |
    sed -n 's/^shlibs:Depends=//p')
[ -n "$depends" ] || fail "dpkg-shlibdeps finds no dependencies of the shared library"

documents() { # PACKAGE
    directory=$work/$1/usr/share/doc/$1
    mkdir -p "$directory"
    {
        echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
        echo "Upstream-Name: unlade"
        echo
        echo "Files: *"
        echo "Copyright: 2025 The Unlade authors"
        echo "License: Apache-2.0 or Expat"
        echo
        echo "License: Apache-2.0"
        echo " See /usr/share/common-licenses/Apache-2.0."
        echo
        echo "License: Expat"
        sed -e 's/^$/./' -e 's/^/ /' "$root/LICENSE-MIT"
    } >"$directory/copyright"
}

control() { # PACKAGE SECTION DEPENDS SUMMARY, description on standard input
    size=$(du -k -s --apparent-size "$work/$1/usr" | cut -f1)
    mkdir -p "$work/$1/DEBIAN"
    {
        echo "Package: $1"
        echo "Source: unlade"
        echo "Version: $version"
        echo "Architecture: $architecture"
        echo "Multi-Arch: same"
        echo "Maintainer: the Unlade authors <unlade@localhost>"
        echo "Installed-Size: $size"
        echo "Depends: $3"
        echo "Section: $2"
        echo "Priority: optional"
        echo "Description: $4"
        sed 's/^/ /'
    } >"$work/$1/DEBIAN/control"
    (cd "$work/$1" && find usr -type f -print0 | sort -z | xargs -0 md5sum) \
        >"$work/$1/DEBIAN/md5sums"
    mkdir -p "$output"
    dpkg-deb --root-owner-group --build "$work/$1" \
        "$output/${1}_${version}_${architecture}.deb" >/dev/null
    echo "$output/${1}_${version}_${architecture}.deb"
}

documents "$runtime"
documents "$dev"
mkdir -p "$work/$runtime/DEBIAN"
echo "libunlade_copier 0 $runtime (>= $version)" >"$work/$runtime/DEBIAN/shlibs"
# dpkg runs ldconfig.
echo "activate-noawait ldconfig" >"$work/$runtime/DEBIAN/triggers"
control "$runtime" libs "$depends" "asynchronous copies by a copy service" <<'TEXT'
A thread of the process makes copies while the program continues. The program
waits only for the bytes that it uses next. This package has the shared library.
TEXT
control "$dev" libdevel "$runtime (= $version)" \
    "asynchronous copies by a copy service: development files" <<'TEXT'
A thread of the process makes copies while the program continues. The program
waits only for the bytes that it uses next. This package has the headers for C
and C++, the static library, files for pkg-config and CMake, and examples.
TEXT
