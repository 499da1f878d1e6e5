"""Builds the native CPU kernels, `distkv/kernels/cpu/_native.so`; everything else stands in pyproject.toml.

    python setup.py build_ext --inplace       only what has changed, for development

Needs a C++17 compiler (CXX, or the first of c++, g++ and clang++), no Python headers and no torch. The library has no
part in Python's ABI, so that one wheel per platform serves every Python. Without a compiler the installation succeeds
without the library; a level that the compiler cannot make is left out. `_native.txt` beside the library tells the
product which and why.
"""

import fcntl
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

NATIVE = Path("distkv/kernels/cpu/native")
COMPILERS = ("c++", "g++", "clang++")
COMMON_FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-pthread"]
# gcc's own intrinsics start from variables without a value.
WARNINGS = ["-Wall", "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-unknown-warning-option"]
AVX2_FLAGS = ["-mavx2", "-mfma", "-mf16c"]
AVX512_FLAGS = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", *AVX2_FLAGS]
LEVEL_FLAGS = {
    "portable": [],
    "avx2": AVX2_FLAGS,
    "avx512": AVX512_FLAGS,
    "avx512bf16": [*AVX512_FLAGS, "-mavx512bf16"],
    "amx": [*AVX512_FLAGS, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
}
"""By the name of the source, weakest first: of a template that several levels instantiate the linker keeps the first
copy, which then runs everywhere."""
X86_64 = platform.machine() in ("x86_64", "AMD64")


class BuildNative(build_ext):
    """Compiles each source with the flags of its level and links them once."""

    def run(self):
        # Who builds in place wants to see an error as one; an installation must succeed.
        self.strict = bool(self.inplace) and not self.editable_mode
        for ext in self.extensions:
            ext.optional = not self.strict
        if self.editable_mode:
            # An editable installation removes its own when it is done, and whoever builds next would compile all again.
            usual = build(self.distribution)
            usual.ensure_finalized()
            self.build_temp = usual.build_temp
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        with Path(folder, "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            super().run()

    def get_ext_filename(self, fullname):
        return str(Path(*fullname.split("."))) + ".so"

    def get_outputs(self):
        return [path for path in super().get_outputs() if Path(path).exists()]

    def build_extension(self, ext):
        library = Path(self.build_lib, self.get_ext_filename(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        library.unlink(missing_ok=True)
        left_out = self._build(library)
        library.with_suffix(".txt").write_text("".join(f"{name}: {why}\n" for name, why in left_out.items()))
        for name, why in left_out.items():
            self.warn(f"native CPU kernels: {name} left out: {why}")

    def copy_extensions_to_source(self):
        for ext in self.extensions:
            library = Path(self.get_ext_filename(ext.name))
            for wanted in (library, library.with_suffix(".txt")):
                built = Path(self.build_lib, wanted)
                if built.exists():
                    # A process that has the old one mapped keeps it.
                    shutil.copyfile(built, wanted.with_suffix(".new"))
                    wanted.with_suffix(".new").replace(wanted)
                else:
                    wanted.unlink(missing_ok=True)

    def _build(self, library):
        """Make the library if that is possible. Returns what was left out, "all" or names of levels, and why."""
        compiler, problem = find_compiler()
        if compiler is None:
            return {"all": problem}
        left_out = {}
        jobs = {source: [] for source in sorted(NATIVE.glob("*.cpp")) if source.stem not in LEVEL_FLAGS}
        for level, flags in LEVEL_FLAGS.items():
            if level != "portable" and not X86_64:
                left_out[level] = f"it is for x86-64, this is {platform.machine()}"
            elif problem := syntax_problem(compiler, flags):
                left_out[level] = problem
            else:
                jobs[NATIVE / f"{level}.cpp"] = flags
        folder = Path(self.build_temp)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            made = list(pool.map(lambda job: compile_object(compiler, *job, folder, self.force), jobs.items()))
        for source, target in zip(jobs, made, strict=True):
            if target is None:
                problem = f"{compiler[0]} could not compile {source.name}"
                if self.strict:
                    raise CompileError(problem)
                left_out[source.stem if source.stem in LEVEL_FLAGS and source.stem != "portable" else "all"] = problem
        if "all" in left_out:
            return left_out
        objects = [str(target) for target in made if target is not None]
        link = [*compiler, "-shared", "-pthread", *objects, "-o", str(library), *words("LDFLAGS")]
        if problem := run(link):
            if self.strict:
                raise CompileError(problem)
            return {"all": f"{compiler[0]} could not link: {first_line(problem)}"}
        return left_out


class PlatformWheel(bdist_wheel):
    """Any Python 3, this platform."""

    def run(self):
        # setuptools' own folder for that still has the files of the version before, and they would be installed, too.
        with tempfile.TemporaryDirectory() as folder:
            # Also of what a command before this one has built, as sdist does to find its files.
            usual = self.reinitialize_command("build", reinit_subcommands=True)
            usual.ensure_finalized()
            usual.build_lib = folder
            super().run()

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


def find_compiler():
    """The command of a C++ compiler that makes a shared library; else None and what is wrong."""
    named = words("CXX")
    for command in [named] if named else [[name] for name in COMPILERS if shutil.which(name)]:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "trial.cpp")
            source.write_text("#include <atomic>\nstd::atomic<int> trial;\n")
            problem = run([*command, *COMMON_FLAGS, "-shared", str(source), "-o", str(source.with_suffix(".so"))])
        if not problem:
            return command, ""
        return None, f"{shlex.join(command)} does not work: {first_line(problem)}"
    return None, f"no C++ compiler was found (tried {', '.join(COMPILERS)})"


def syntax_problem(compiler, flags):
    """What a compiler has against these flags; empty if nothing."""
    return first_line(run([*compiler, *COMMON_FLAGS, *flags, "-fsyntax-only", "-x", "c++", os.devnull]))


def compile_object(compiler, source, flags, folder, force):
    """The object file of a source, compiled if it is older than what it is made of; None if that fails."""
    target, record = folder / f"{source.stem}.o", folder / f"{source.stem}.command"
    command = shlex.join(
        [*compiler, *COMMON_FLAGS, *flags, *WARNINGS, *words("CXXFLAGS"), "-c", str(source), "-o", str(target)]
    )
    newest = max(path.stat().st_mtime for path in (source, *NATIVE.glob("*.h")))
    if not force and target.exists() and target.stat().st_mtime > newest and record.read_text() == command:
        return target
    target.unlink(missing_ok=True)
    record.write_text(command)
    logging.info(command)
    problem = run(shlex.split(command), show=True)
    return None if problem else target


def run(command, show=False):
    """What a command says when it fails; empty if it succeeds."""
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        return str(error)
    if show:
        sys.stderr.write(done.stderr)
    return "" if done.returncode == 0 else done.stderr or f"exit code {done.returncode}"


def first_line(text):
    return next(iter(text.strip().splitlines()), "")


def words(variable):
    return shlex.split(os.environ.get(variable, ""))


setup(
    ext_modules=[
        Extension(
            "distkv.kernels.cpu._native",
            sources=sorted(map(str, NATIVE.glob("*.cpp"))),
            depends=sorted(map(str, NATIVE.glob("*.h"))),
        )
    ],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
)
