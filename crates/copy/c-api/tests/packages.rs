//! The installed library as a stranger finds it: `install.sh` and the Debian packages, with
//! pkg-config and CMake, gcc and clang. All examples compile, run, and find their results right.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{ROOT, has, libraries, program, run};

mod support;

/// The examples, and a compiler for each.
const EXAMPLES: [(&str, &[&str]); 7] = [
    ("readme.c", &["gcc", "clang"]),
    ("log_pipeline.c", &["gcc", "clang"]),
    ("receive.c", &["gcc", "clang"]),
    ("proxy.c", &["gcc", "clang"]),
    ("sites.c", &["gcc", "clang"]),
    ("hand_over.c", &["gcc", "clang"]),
    ("frames.cc", &["g++", "clang++"]),
];
/// Options that select other code paths of the library.
const WAYS: [&str; 3] = ["", "enabled=0", "polling=always:threads=2:queue_len=64"];

/// An installation below a directory.
struct Installed {
    /// Directory that takes the place of `/`, or `None` if the paths are those of this system.
    root: Option<PathBuf>,
    prefix: PathBuf,
    libdir: PathBuf,
}

impl Installed {
    /// Flags of pkg-config, as words.
    fn flags(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(arguments).arg("unlade-copier");
        command.env("PKG_CONFIG_LIBDIR", self.libdir.join("pkgconfig"));
        if let Some(root) = &self.root {
            command.env("PKG_CONFIG_SYSROOT_DIR", root);
            command.env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1");
            command.env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1");
        }
        let output = run(&mut command);
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    fn compile(&self, compiler: &str, source: &Path, to: &Path) {
        let mut command = Command::new(compiler);
        command.args(["-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]);
        let standard = if compiler.ends_with("++") { "-std=c++11" } else { "-std=c99" };
        command.arg(standard).arg("-o").arg(to).arg(source);
        run(command.args(self.flags(&["--cflags", "--libs"])));
    }

    /// Runs a program with this library, with all options.
    fn succeeds(&self, path: &Path) {
        for way in WAYS {
            let mut command = program(path);
            command.env("LD_LIBRARY_PATH", &self.libdir).env("COPIER_OPTIONS", way);
            let output = run(&mut command);
            assert!(output.stderr.is_empty(), "{path:?} {way}: {output:?}");
        }
    }

    /// Compiles and runs the examples of `sources` with pkg-config.
    fn examples_with_pkg_config(&self, sources: &Path) {
        if !has("pkg-config") {
            return println!("skipped: no pkg-config");
        }
        let directory = tempfile::tempdir().unwrap();
        for (name, compilers) in EXAMPLES {
            for compiler in compilers {
                if !has(compiler) {
                    println!("skipped: {name} with {compiler}, which is not here");
                    continue;
                }
                let path = directory.path().join(format!("{name}-{compiler}"));
                self.compile(compiler, &sources.join(name), &path);
                self.succeeds(&path);
            }
        }
    }

    /// Builds and runs the examples of `sources` with CMake, shared and static.
    fn examples_with_cmake(&self, sources: &Path) {
        let Some(generator) = generator() else { return };
        let build = tempfile::tempdir().unwrap();
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(sources).arg("-B").arg(build.path()).args(["-G", generator]);
        configure.arg(format!("-DCMAKE_PREFIX_PATH={}", self.prefix.display()));
        // Only this installation is searched, not a library that the system has.
        configure.arg("-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=FALSE");
        run(configure.args(["-DCMAKE_C_FLAGS=-Wall -Werror", "-DCMAKE_CXX_FLAGS=-Wall -Werror"]));
        let cache = fs::read_to_string(build.path().join("CMakeCache.txt")).unwrap();
        let found = cache.lines().find_map(|line| line.strip_prefix("unlade-copier_DIR:PATH="));
        let expected = self.libdir.join("cmake/unlade-copier");
        assert_eq!(found.map(Path::new), Some(expected.as_path()));
        run(Command::new("cmake").arg("--build").arg(build.path()));
        for (name, _) in EXAMPLES {
            for kind in ["shared", "static"] {
                let name = name.split_once('.').unwrap().0;
                let path = build.path().join(format!("{name}-{kind}"));
                self.succeeds(&path);
                let needed = run(Command::new("readelf").arg("-d").arg(&path)).stdout;
                let needed = String::from_utf8(needed).unwrap();
                assert_eq!(needed.contains("libunlade_copier.so.0"), kind == "shared", "{path:?}");
            }
        }
    }

    /// CMake rejects a version that this library does not have.
    fn cmake_checks_versions(&self) {
        let Some(generator) = generator() else { return };
        let directory = tempfile::tempdir().unwrap();
        for (version, is_right) in
            [("", true), ("0", true), ("0.1", true), ("0.2", false), ("0.0", false), ("1", false)]
        {
            let text = format!(
                "cmake_minimum_required(VERSION 3.13)\nproject(v C)\n\
                 find_package(unlade-copier {version} REQUIRED)\n"
            );
            fs::write(directory.path().join("CMakeLists.txt"), text).unwrap();
            let build = tempfile::tempdir().unwrap();
            let mut command = Command::new("cmake");
            command.arg("-S").arg(directory.path()).arg("-B").arg(build.path());
            command.arg("-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=FALSE").args(["-G", generator]);
            command.arg(format!("-DCMAKE_PREFIX_PATH={}", self.prefix.display()));
            let output = command.output().unwrap();
            assert_eq!(output.status.success(), is_right, "version `{version}`: {output:?}");
        }
    }
}

/// Generator of CMake, if CMake, compilers and `make` are here.
fn generator() -> Option<&'static str> {
    let missing = ["cmake", "make", "cc", "c++", "readelf"].into_iter().find(|tool| !has(tool));
    if let Some(missing) = missing {
        println!("skipped: no {missing}");
        return None;
    }
    Some("Unix Makefiles")
}

#[test]
fn examples_compile_and_are_right_with_the_installed_library() {
    let directory = tempfile::tempdir().unwrap();
    let prefix = directory.path().canonicalize().unwrap();
    let mut install = Command::new(Path::new(ROOT).join("install.sh"));
    run(install.arg("--prefix").arg(&prefix).arg("--libraries").arg(libraries()));
    let libdir = prefix.join("lib");
    let installed = Installed { root: None, prefix, libdir };
    let sources = Path::new(ROOT).join("examples");
    installed.examples_with_pkg_config(&sources);
    installed.examples_with_cmake(&sources);
    installed.cmake_checks_versions();
}

/// Text of a command that prints one line.
fn line(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).unwrap().trim().to_owned()
}

/// Makes the packages. `None` if a tool is missing here.
fn packages(output: &Path) -> Option<Vec<PathBuf>> {
    let tools = ["dpkg-deb", "dpkg-shlibdeps", "dpkg-architecture", "strip"];
    if let Some(missing) = tools.into_iter().find(|tool| !has(tool)) {
        println!("skipped: no {missing}");
        return None;
    }
    let mut make = Command::new(Path::new(ROOT).join("package-deb.sh"));
    let made = run(make.arg("--libraries").arg(libraries()).arg("--output").arg(output));
    let made = String::from_utf8(made.stdout).unwrap();
    Some(made.lines().map(PathBuf::from).collect())
}

#[test]
fn debian_packages_install_and_their_examples_are_right() {
    let directory = tempfile::tempdir().unwrap();
    let Some(made) = packages(directory.path()) else { return };
    assert_eq!(made.len(), 2, "{made:?}");
    let root = directory.path().canonicalize().unwrap().join("root");
    let database = root.join("var/lib/dpkg");
    fs::create_dir_all(database.join("updates")).unwrap();
    fs::create_dir_all(database.join("info")).unwrap();
    fs::write(database.join("status"), "").unwrap();
    // A system of its own, which lacks only the C library's package. The second package depends on
    // the first, which dpkg checks.
    for package in &made {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", root.display())).arg("--log=/dev/null");
        let ignored = "libc6,libgcc-s1";
        dpkg.args(["--force-not-root", "--force-script-chrootless"]);
        dpkg.arg("--ignore-depends").arg(ignored).arg("-i").arg(package);
        run(&mut dpkg);
    }
    let multiarch = line(Command::new("dpkg-architecture").arg("-qDEB_HOST_MULTIARCH"));
    let prefix = root.join("usr");
    let libdir = prefix.join("lib").join(multiarch);
    let sources = prefix.join("share/doc/libunlade-copier-dev/examples");
    assert!(prefix.join("share/man/man3/unlade_copier.3.gz").exists());
    let installed = Installed { root: Some(root), prefix, libdir };
    installed.examples_with_pkg_config(&sources);
    installed.examples_with_cmake(&sources);
}

#[test]
fn debian_packages_name_their_library_and_what_it_needs() {
    let directory = tempfile::tempdir().unwrap();
    let Some(made) = packages(directory.path()) else { return };
    let field = |package: &Path, name: &str| {
        line(Command::new("dpkg-deb").arg("--field").arg(package).arg(name))
    };
    let [runtime, dev] = made.try_into().unwrap();
    let version = field(&runtime, "Version");
    assert_eq!(field(&runtime, "Package"), "libunlade-copier0");
    assert!(field(&runtime, "Depends").contains("libc6 (>= 2."), "{runtime:?}");
    assert_eq!(field(&dev, "Depends"), format!("libunlade-copier0 (= {version})"));
    let content = |package: &Path| line(Command::new("dpkg-deb").arg("--contents").arg(package));
    let (runtime, dev) = (content(&runtime), content(&dev));
    assert!(runtime.contains("libunlade_copier.so.0 -> "), "{runtime}");
    // Only the runtime package has files of its kind: both can be of two versions for a moment.
    assert!(!runtime.contains("include/") && !runtime.contains("pkgconfig"), "{runtime}");
    for name in
        ["copier.h", "copier.hpp", "copier.a", "copier.pc", "copierConfig.cmake", "frames.cc"]
    {
        assert!(dev.contains(name), "{name}: {dev}");
    }
    assert!(!dev.contains("libunlade_copier.so.0.1.0\n"), "{dev}");
    let owners = runtime.lines().chain(dev.lines()).filter(|line| !line.contains(" root/root "));
    assert_eq!(owners.count(), 0);
}
