// Several processes that share one model, as a user starts them.
#include "cli/rank_runs.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>

using namespace tandem::testing;
using tandem::Stopwatch;

TEST_SUITE("cli/ranks") {
  TEST_CASE("two ranks and three write what one writes; rank 0 alone") {
    const Outcome one = run_process(program("pig-generate"), {.arguments = kText});
    REQUIRE(one.status == 0);
    REQUIRE(one.out.size() > 20);
    for (const int size : {2, 3}) {
      CAPTURE(size);
      const auto all = run_ranks(size, kText);
      CHECK(all[0].status == 0);
      CHECK(all[0].out == one.out);
      for (size_t r = 1; r < all.size(); ++r) {
        CHECK(all[r].status == 0);
        CHECK(all[r].out == "");
        CHECK(all[r].err == "");
      }
    }
  }

  TEST_CASE("a number of ranks that does not divide the heads is refused with those that do") {
    const auto all = run_ranks(4, kText);
    CHECK(all[0].status == 3);
    CHECK(has(all[0].err, "run.world_size: is 4, which does not divide 6 query heads and 2 KV"));
    CHECK(has(all[0].err, "tiny-16m can be sharded over 1, 2, 3, 6 ranks"));
    for (size_t r = 1; r < all.size(); ++r) CHECK(all[r].status == 3);
  }

  TEST_CASE("unlike recipes, prompts and models: rank 0 says which, all end") {
    RankRun unlike{.more = [](int r) {
      return r == 1 ? Words{"-s", "sampling.top_k=5"} : Words{};
    }};
    auto all = run_ranks(2, kText, unlike);
    CHECK(all[0].status == 3);
    CHECK(has(all[0].err, "sampling.top_k is 5 on rank 1, "));
    CHECK(all[1].status == 3);
    CHECK(all[0].out == "");
    unlike.more = [](int r) { return r == 1 ? Words{"-m", "tiny-2m"} : Words{}; };
    all = run_ranks(2, kText, unlike);
    CHECK(all[0].status == 3);
    CHECK(has(all[0].err, "model.path is "));
  }

  TEST_CASE("a rank that is killed ends the others, which say so") {
    for (const int victim : {0, 1}) {
      CAPTURE(victim);
      Stopwatch clock;
      RankRun how{.change = [&](int r, Launch& launch) {
        launch.arguments = launch.arguments + Words{"-n", "100000", "-s", "run.context=0"};
        if (r != victim) return;
        launch.signal = SIGKILL;
        launch.signal_at_cpu = 1;
      }};
      const auto all = run_ranks(2, kText, how);
      const Outcome& other = all[static_cast<size_t>(1 - victim)];
      CHECK(other.status == 6);
      CHECK(clock.seconds() < 12);
      CHECK(has(other.err, fmt::format("rank {} (", victim)));
      CHECK(has(other.err, "exited without an error message"));
    }
  }

  TEST_CASE("a signal to any rank ends all at one step, and rank 0 shows what it has") {
    for (const int asked : {0, 1}) {
      CAPTURE(asked);
      RankRun how{.change = [&](int r, Launch& launch) {
        launch.arguments = launch.arguments + Words{"-n", "100000"};
        if (r != asked) return;
        launch.signal = SIGINT;
        launch.signal_at_cpu = 1;
      }};
      const auto all = run_ranks(2, kText, how);
      CHECK(all[0].status == 130);
      CHECK(all[1].status == 130);
      CHECK(all[0].out.size() > 20);
      CHECK(!has(all[0].err, "error: ranks"));
    }
  }

  TEST_CASE("a rank that is silent ends the others, which name it") {
    const TemporaryFolder folder;
    std::string words;
    for (const std::string& word :
         kText + Words{"-n", "100000", "-s", "run.world_size=2", "-s", "run.timeout=2", "-s",
                       "run.rendezvous=" + (folder / "meet").string()})
      words += " '" + word + "'";
    const std::string tool = "'" + program("pig-generate") + "'" + words;
    const Outcome run =
        run_shell("(" + tool + " -s run.rank=1 & other=$!; " + tool +
                  " -s run.rank=0 > /dev/null & first=$!; sleep 3; kill -STOP $other; wait $first; "
                  "status=$?; kill -KILL $other; exit $status)");
    CHECK(run.status == 6);
    CHECK(has(run.err, "rank 1 ("));
    CHECK(has(run.err, "did not respond for 2 s"));
    CHECK(run.seconds < 15);
  }

  TEST_CASE("a rendezvous that no rank joins") {
    const Outcome run = run_process(
        program("pig-generate"),
        {.arguments = kText + Words{"-s", "run.rank=1", "-s", "run.world_size=2", "-s",
                                    "run.rendezvous=127.0.0.1:29711", "-s", "run.timeout=1"}});
    CHECK(run.status == 6);
    CHECK(has(run.err, "run.rendezvous: 127.0.0.1:29711: after 1 s rank 0 is not reachable"));
    CHECK(run.seconds < 5);
  }

  TEST_CASE("two network namespaces as two hosts, else two loopback addresses") {
    const Outcome one = run_process(program("pig-generate"), {.arguments = kText});
    std::string words;
    for (const std::string& word : kText + Words{"-s", "run.world_size=2"})
      words += " '" + word + "'";
    // ranks WRAPPER0 WRAPPER1 ADDRESS: rank 0 in one network, rank 1 in the other.
    const std::string script = "ranks() { $2 '" + program("pig-generate") + "'" + words +
                               " -s run.rank=1 -s run.rendezvous=$3 & other=$!; $1 '" +
                               program("pig-generate") + "'" + words +
                               " -s run.rank=0 -s run.rendezvous=$3; status=$?; wait $other || "
                               "status=$?; return $status; }\n";
    const std::string name = fmt::format("tandem-{}", ::getpid());
    const Outcome made = run_shell(fmt::format(
        "ip netns add {0}a && ip netns add {0}b && ip link add va{1} type veth peer name vb{1} && "
        "ip link set va{1} netns {0}a && ip link set vb{1} netns {0}b && "
        "ip -n {0}a addr add 10.77.0.1/24 dev va{1} && ip -n {0}b addr add 10.77.0.2/24 dev vb{1} "
        "&& "
        "ip -n {0}a link set va{1} up && ip -n {0}b link set vb{1} up && ip -n {0}a link set lo up "
        "&& "
        "ip -n {0}b link set lo up",
        name, ::getpid() % 10'000));
    if (made.status == 0) {
      const Outcome run = run_shell(
          script +
          fmt::format("ranks 'ip netns exec {0}a' 'ip netns exec {0}b' 10.77.0.1:29715", name));
      CAPTURE(run.err);
      CHECK(run.status == 0);
      CHECK(run.out == one.out);
    } else {
      MESSAGE("no network namespaces here: " << made.err);
    }
    run_shell(fmt::format("ip netns del {0}a; ip netns del {0}b", name));
    const Outcome run = run_shell(script + "ranks '' '' 127.0.0.2:29716");
    CAPTURE(run.err);
    CHECK(run.status == 0);
    CHECK(run.out == one.out);
  }

  TEST_CASE("launchers: mpirun's processes, and variables of srun and torchrun") {
    const Outcome one = run_process(program("pig-generate"), {.arguments = kText});
    const auto launched = [&](const std::function<std::map<std::string, std::string>(int)>& of) {
      return run_ranks(2, kText, {.change = [&](int r, Launch& launch) {
                         launch.arguments = kText;
                         launch.variables = of(r);
                       }});
    };
    const auto slurm = launched([](int r) {
      return std::map<std::string, std::string>{{"SLURM_PROCID", std::to_string(r)},
                                                {"SLURM_STEP_NUM_TASKS", "2"},
                                                {"SLURM_LOCALID", std::to_string(r)},
                                                {"SLURM_STEP_NODELIST", "localhost"},
                                                {"SLURM_JOB_ID", "4321"},
                                                {"SLURM_STEP_ID", "0"}};
    });
    CHECK(slurm[0].out == one.out);
    CHECK(slurm[1].status == 0);
    const auto torchrun = launched([](int r) {
      return std::map<std::string, std::string>{{"RANK", std::to_string(r)},
                                                {"WORLD_SIZE", "2"},
                                                {"LOCAL_RANK", std::to_string(r)},
                                                {"MASTER_ADDR", "127.0.0.1"},
                                                {"MASTER_PORT", "29713"}};
    });
    CHECK(torchrun[0].out == one.out);
    CHECK(torchrun[1].status == 0);
    if (run_shell("command -v mpirun").status != 0) {
      CHECK_MESSAGE(std::getenv("TANDEM_CI") == nullptr, "mpirun is not installed");
      return;
    }
    std::string words;
    for (const std::string& word : kText) words += " '" + word + "'";
    const Outcome mpi = run_shell("mpirun --allow-run-as-root --oversubscribe -n 2 " +
                                  program("pig-generate") + words);
    CHECK(mpi.status == 0);
    CHECK(mpi.out == one.out);
  }
}
