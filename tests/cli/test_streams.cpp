#include <doctest/doctest.h>

#include <csignal>

#include "cli/probe.h"

using namespace tandem::testing;

namespace fs = std::filesystem;

TEST_SUITE("cli/streams") {
  TEST_CASE("a reader that leaves ends the tool quietly") {
    const Outcome run =
        run_shell(program("cli_probe") + " -m tiny-2m -n 200000 | head -1; echo ${PIPESTATUS[0]}");
    CHECK(run.out == "line 0 seed 0 stop []\n141\n");
    CHECK(run.err.empty());
  }

  TEST_CASE("a full disk is an error with a remedy") {
    const std::string hint = "  hint: free some disk space, or write to another disk\n";
    const Outcome out = probe_model({}, {.stdout_path = "/dev/full"});
    CHECK(out.status == 4);
    CHECK(out.err ==
          "cli-probe: error: standard output: cannot write: No space left on device\n" + hint);
    const Outcome help = probe({"--help"}, {.stdout_path = "/dev/full"});
    CHECK(help.status == 4);
    const Outcome file = probe_model({"-o", "/dev/full"});
    CHECK(file.status == 4);
    CHECK(file.err ==
          "cli-probe: error: /dev/full: cannot write: No space left on device\n" + hint);
  }

  TEST_CASE("output files appear when complete, are not replaced unasked, and can grow") {
    const TemporaryFolder folder;
    const std::string path = (folder / "out.txt").string(), line = "line 0 seed 0 stop []\n";
    const Outcome fresh = probe_model({"-o", path});
    CHECK(fresh.status == 0);
    CHECK(fresh.out.empty());
    CHECK(file_text(path) == line);
    const Outcome refused = probe_model({"-o", path, "--seed", "1"});
    CHECK(refused.status == 2);
    CHECK(refused.err == "cli-probe: error: " + path +
                             ": the output file exists already\n  hint: replace it with "
                             "--overwrite, or choose another name\n");
    CHECK(file_text(path) == line);
    CHECK(probe_model({"-o", path, "--overwrite", "-n", "2"}).status == 0);
    CHECK(file_text(path).size() == 2 * line.size());
    std::ofstream(path) << "torn";
    CHECK(probe_model({"-o", path, "--append"}).status == 0);
    CHECK(file_text(path) == "torn\n" + line);
    CHECK(probe_model({"-o", "-"}).out == line);
    CHECK(probe_model({"-o", "/dev/null"}).status == 0);
    CHECK(fs::is_character_file("/dev/null"));
    CHECK(probe_model({"-o", (folder / "new.txt").string(), "--fail", "numeric"}).status == 7);
    CHECK(folder.n_files() == 1);
  }

  TEST_CASE("switches may say false, and nothing else") {
    const TemporaryFolder folder;
    const std::string path = (folder / "out.txt").string();
    std::ofstream(path) << "precious";
    for (const char* off :
         {"--overwrite=no", "--overwrite=false", "--overwrite=False", "--overwrite=0",
          "--overwrite=", "--no-overwrite", "--no-overwrite=maybe"}) {
      CAPTURE(off);
      CHECK(probe_model({"-o", path, off}).status == 2);
      CHECK(file_text(path) == "precious");
    }
    CHECK(probe_model({"-o", path, "--overwrite=true"}).status == 0);
  }

  TEST_CASE("closed streams lose nothing silently, and spoil no file") {
    const TemporaryFolder folder;
    const std::string call = program("cli_probe") + " -m tiny-2m", line = "line 0 seed 0 stop []\n";
    const std::string said = (folder / "said").string(), out = (folder / "out").string();
    CHECK(run_shell(call + " >&- 2>" + said).status == 4);
    CHECK(file_text(said) ==
          "cli-probe: error: standard output: cannot write: Bad file descriptor\n  hint: standard "
          "output is closed: leave it open, or name a file with -o\n");
    CHECK(run_shell(call + " -r - <&- 2>" + said).status == 3);
    CHECK(has(file_text(said), "<stdin>: cannot read: Bad file descriptor"));
    CHECK(run_shell(call + " -t 5000 -o " + out + " <&- >&- 2>&-").status ==
          0);  // which is warned of
    CHECK(file_text(out) == line);
    CHECK(run_shell(call + " 2>&-").out == line);
  }

  TEST_CASE("what a run reads is not what it writes") {
    const TemporaryFolder folder;
    const std::string recipe = (folder / "r.yaml").string(), link = (folder / "link").string();
    std::ofstream(recipe) << "run: {seed: 3}\n";
    fs::create_symlink("r.yaml", link);
    for (const char* how : {"--overwrite", "--append"}) {
      const Outcome run = probe_model({"-r", recipe, "-o", link, how});
      check_refused(run, 2, link + ": this run would write the file that it reads as " + recipe);
      CHECK(has(run.err, "hint: choose another output name\n"));
      CHECK(file_text(recipe) == "run: {seed: 3}\n");
    }
  }

  TEST_CASE("a file that appears during a run is not replaced unasked") {
    const TemporaryFolder folder;
    const std::string path = (folder / "out").string();
    const auto appears = [&] {
      std::ofstream(path) << "precious";
      return true;
    };
    const Launch launch{.signal = SIGINT, .signal_after = "waiting", .signal_when = appears};
    const Outcome run = probe_model({"--poll", "-o", path}, launch);
    CHECK(has(run.err, path + ": this file appeared during the run and was not overwritten"));
    CHECK(file_text(path) == "precious");
    CHECK(file_text(path + ".kept-1") == "line 0 seed 0 stop []\n");
    CHECK(probe_model({"--poll", "-o", path, "--overwrite"}, launch).status == 130);
    CHECK(file_text(path) == "line 0 seed 0 stop []\n");
  }

  TEST_CASE("a pipe is written once it has a reader, and waiting for that can be ended") {
    const TemporaryFolder folder;
    const std::string pipe = (folder / "pipe").string();
    CHECK(run_shell("mkfifo " + pipe).status == 0);
    const Outcome ended =
        probe_model({"-o", pipe}, {.signal = SIGTERM, .signal_after = "waiting for a reader"});
    CHECK(ended.status == 143);
    CHECK(ended.seconds < 2);
    CHECK(run_shell(program("cli_probe") + " -m tiny-2m -q -o " + pipe + " & cat " + pipe).out ==
          "line 0 seed 0 stop []\n");
    CHECK(
        run_shell(program("cli_probe") + " -m tiny-2m -r <(sleep .1; echo 'run: {seed: 5}')").out ==
        "line 0 seed 5 stop []\n");
  }

  TEST_CASE("names keep messages to one line that no terminal obeys") {
    const Outcome run = probe_model({"-o", "no/such\n\x1b[31mfolder\xff/x"});
    check_refused(run, 4, "error: no/such\\n\\x1b[31mfolder\\xff/x: cannot create");
    const TemporaryFolder folder;
    folder.write("r.yaml", "base: \"a\\0b\"\n");
    check_refused(probe_model({"-r", (folder / "r.yaml").string()}), 3, "base 'a\\x00b' not found");
  }

  TEST_CASE("what names standard output or a folder is told so") {
    const TemporaryFolder folder;
    const std::string call = program("cli_probe") + " -m tiny-2m -o /dev/stdout > ";
    CHECK(has(run_shell(call + (folder / "out").string()).err,
              "hint: -o - writes to standard output\n"));
    for (const char* how : {"--overwrite", "--append"})
      check_refused(probe_model({"-o", folder.path().string(), how}), 2,
                    "expected a file name, found a folder");
  }

  TEST_CASE("a limit on the size of files is an error like a full disk") {
    const TemporaryFolder folder;
    const std::string out = (folder / "out").string();
    const Outcome run =
        run_shell("ulimit -f 1; " + program("cli_probe") + " -m tiny-2m -n 999 -o " + out);
    check_refused(run, 4, out + ": cannot write after 1024 bytes: File too large");
    CHECK(folder.n_files() == 0);
  }

  TEST_CASE("a symbolic link keeps pointing at the file that is replaced") {
    const TemporaryFolder folder;
    std::ofstream(folder / "real.txt") << "old";
    fs::create_symlink("real.txt", folder / "link.txt");
    CHECK(probe_model({"-o", (folder / "link.txt").string(), "--overwrite"}).status == 0);
    CHECK(fs::is_symlink(folder / "link.txt"));
    CHECK(file_text(folder / "real.txt") == "line 0 seed 0 stop []\n");
  }

  TEST_CASE("places that cannot be written") {
    // Permission bits do not bind root, but no user may create files in /proc or below a file.
    const TemporaryFolder folder;
    std::ofstream(folder / "file") << "x";
    for (const std::string& path : {(folder / "file/out").string(), std::string("/proc/out"),
                                    (folder / "none/out").string()}) {
      const Outcome run = probe_model({"-o", path});
      CHECK(run.status == 4);
      CHECK(run.err.find("cli-probe: error: " + path + ": cannot create: ") == 0);
      CHECK(run.err.find("\n  hint: the folder '") != std::string::npos);
    }
    CHECK(probe_model({"-o", folder.path().string()}).status == 2);
  }

  TEST_CASE("colour only where asked for or on a terminal, never against NO_COLOR") {
    const std::string colored = "\033[1;31merror:\033[0m";
    CHECK(probe_model({"--fail", "numeric"}).err.find('\033') == std::string::npos);
    CHECK(probe_model({"--fail", "numeric", "--color", "always"}).err.find(colored) !=
          std::string::npos);
    // A terminal of its own, by script(1) where it is installed.
    if (run_shell("command -v script").status != 0) return;
    const std::string call = program("cli_probe") + " -m tiny-2m --fail numeric";
    const auto on_terminal = [&](const std::string& settings) {
      return run_shell("script -qec 'env " + settings + " " + call + "' /dev/null").out;
    };
    CHECK(on_terminal("-u NO_COLOR TERM=xterm").find(colored) != std::string::npos);
    CHECK(on_terminal("-u NO_COLOR TERM=dumb").find(colored) == std::string::npos);
    CHECK(on_terminal("NO_COLOR=1 TERM=xterm").find(colored) == std::string::npos);
  }

  TEST_CASE("the first signal ends at the next step, the second at once") {
    const Outcome interrupt =
        probe_model({"--poll"}, {.signal = SIGINT, .signal_after = "waiting"});
    CHECK(interrupt.status == 130);
    CHECK(interrupt.seconds < 2);
    CHECK(interrupt.err ==
          "waiting\n\ninterrupted, finishing the current step (press again to abort)\ncli-probe: "
          "error: interrupted\n");
    CHECK(interrupt.out == "line 0 seed 0 stop []\n");
    const Outcome terminate =
        probe_model({"--poll"}, {.signal = SIGTERM, .signal_after = "waiting"});
    CHECK(terminate.status == 143);
    const Outcome hangup = probe_model({"--poll"}, {.signal = SIGHUP, .signal_after = "waiting"});
    CHECK(hangup.status == 129);
    CHECK(hangup.out == "line 0 seed 0 stop []\n");
    const Outcome cpu_limit =
        probe_model({"--poll"}, {.signal = SIGXCPU, .signal_after = "waiting"});
    CHECK(cpu_limit.status == 128 + SIGXCPU);
    CHECK(cpu_limit.out == "line 0 seed 0 stop []\n");
    const Outcome twice =
        probe_model({"--hang"}, {.signal = SIGINT, .signal_count = 2, .signal_after = "waiting"});
    CHECK(twice.status == 130);
    CHECK(twice.seconds < 2);
  }
}
