// Where a process stands among its ranks, by what launchers say; and what ranks say to each other.
#include <doctest/doctest.h>

#include <map>

#include "error_text.h"
#include "ranks/frames.h"
#include "ranks/launch.h"

using namespace tandem;
using namespace tandem::test;
using ranks::Asked;
using ranks::Place;

namespace {

using Variables = std::map<std::string, std::string>;

Place place_of(const Asked& asked, const Variables& variables) {
  return ranks::find_place(asked, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

}  // namespace

TEST_SUITE("ranks/launch") {
  TEST_CASE("by hand, and alone") {
    CHECK(place_of({}, {}).alone());
    const Place p = place_of({.rank = 1, .world_size = 3, .rendezvous = "host:5"}, {});
    CHECK(p.rank == 1);
    CHECK(p.size == 3);
    CHECK(p.rendezvous == "host:5");
    CHECK(p.launcher == "");
    CHECK(place_of({.rank = 0, .world_size = 1}, {}).alone());
    CHECK(error_text([] { place_of({.rank = 1}, {}); }) ==
          "run.world_size: is not set, but run.rank is, and no launcher has set it");
    CHECK(error_text([] { place_of({.world_size = 2}, {}); }).starts_with("run.rank: is not set"));
    const Place planned = place_of({.world_size = 2, .meets = false}, {});
    CHECK(planned.rank == 0);
    CHECK(planned.size == 2);
    CHECK(planned.rendezvous == "");
    CHECK(error_text([] { place_of({.rank = 3, .world_size = 3, .rendezvous = "x:1"}, {}); }) ==
          "run.rank: is 3, expected 0 to 2 for 3 ranks");
    CHECK(error_text([] { place_of({.rank = 0, .world_size = 2}, {}); }) ==
          "run.rendezvous: is not set, and several ranks need it");
  }

  TEST_CASE("mpirun, srun, torchrun; what the recipe says comes first") {
    const Variables mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                           {"PMIX_NAMESPACE", "prterun/42@1"}};
    Place p = place_of({}, mpi);
    CHECK(p.rank == 1);
    CHECK(p.size == 2);
    CHECK(p.launcher == "mpirun");
    CHECK(p.rendezvous.ends_with("/tandem-ranks-prterun-42-1"));
    CHECK(place_of({.rendezvous = "a:1"}, mpi).rendezvous == "a:1");
    CHECK(place_of({.rank = 0}, mpi).rank == 0);
    CHECK(place_of({.rank = 0, .world_size = 1}, mpi).alone());
    Variables two_machines = mpi;
    two_machines["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
    CHECK(error_text([&] { place_of({}, two_machines); }) ==
          "run.rendezvous: is not set, and mpirun does not set it");

    const Variables slurm = {{"SLURM_PROCID", "5"},       {"SLURM_STEP_NUM_TASKS", "8"},
                             {"SLURM_LOCALID", "1"},      {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                             {"SLURM_JOB_ID", "1234567"}, {"SLURM_STEP_ID", "2"}};
    p = place_of({}, slurm);
    CHECK(p.rank == 5);
    CHECK(p.size == 8);
    CHECK(p.local_rank == 1);
    CHECK(p.launcher == "srun");
    CHECK(p.rendezvous == "gpu07:24569");
    // A batch script has tasks, but is none of them.
    CHECK(place_of({}, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).alone());

    p = place_of({}, {{"RANK", "3"},
                      {"WORLD_SIZE", "4"},
                      {"LOCAL_RANK", "3"},
                      {"MASTER_ADDR", "10.0.0.1"},
                      {"MASTER_PORT", "29500"}});
    CHECK(p.rank == 3);
    CHECK(p.launcher == "torchrun");
    CHECK(p.rendezvous == "10.0.0.1:29500");
    CHECK(error_text([] {
            place_of({}, {{"RANK", "x"}, {"WORLD_SIZE", "2"}});
          }) == "RANK: expected a number, found 'x'");
  }

  TEST_CASE("a process that srun counts does not run alone unasked") {
    CHECK(place_of({}, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}).alone());  // a batch script
    const Variables second = {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "2"}};
    CHECK(error_text([&] { place_of({}, second); }) ==
          "SLURM_PROCID: is 5, but SLURM_STEP_NUM_TASKS is not set: this process would run as the "
          "only rank");
    CHECK(hint_text([&] { place_of({}, second); }) ==
          "start the ranks with srun, set run.rank and run.world_size, or unset SLURM_PROCID");
    CHECK(place_of({.rank = 0, .world_size = 1}, second).alone());
  }

  TEST_CASE("the first host of Slurm's lists") {
    CHECK(ranks::first_host("node1") == "node1");
    CHECK(ranks::first_host("node1,node2") == "node1");
    CHECK(ranks::first_host("gpu[003-007,9],login") == "gpu003");
    CHECK(ranks::first_host("gpu[5,9]") == "gpu5");
    CHECK(ranks::first_host("rack[1-2]-gpu,x") == "rack1-gpu");
  }

  TEST_CASE("addresses") {
    const auto text = [](const char* t) {
      const auto a = ranks::parse_address(t);
      return a ? a->text() : "none";
    };
    CHECK(text("host:80") == "host:80");
    CHECK(text("[::1]:80") == "[::1]:80");
    for (const char* bad : {"", "host", ":80", "host:", "host:0", "host:70000", "host:8x", "::1:80",
                            "/tmp/a:80", "dir/file"})
      CHECK(text(bad) == "none");
  }

  TEST_CASE("messages come back, and garbage is none") {
    const ranks::Hello h{.rank = 1,
                         .size = 2,
                         .process = 77,
                         .host = "here",
                         .ring = {"10.0.0.2", 4000},
                         .facts = {{"a", "1\n"}}};
    const auto hello = ranks::parse_hello(ranks::write_hello(h));
    REQUIRE(hello);
    CHECK(hello->ring.text() == "10.0.0.2:4000");
    CHECK(hello->facts == h.facts);
    CHECK(hello->process == 77);
    const auto welcome =
        ranks::parse_welcome(ranks::write_welcome({"run", {{"a", 1}, {"b", 2}}, {"x", "y"}}), 2);
    REQUIRE(welcome);
    CHECK(welcome->rings[1].text() == "b:2");
    CHECK(!ranks::parse_welcome(ranks::write_welcome({"run", {{"a", 1}}, {"x"}}), 2));
    const auto end =
        ranks::parse_end(ranks::write_end(Error(ErrorKind::memory, "w", "m\x1b[31m").hint("h")));
    REQUIRE(end);
    CHECK(end->kind() == ErrorKind::memory);
    CHECK(end->message() == "m [31m");
    CHECK(end->hint_text() == "h");
    for (const char* bad : {"", "{}", "[1]", R"({"rank":-1,"size":2})", R"({"rank":1e99})"}) {
      CHECK(!ranks::parse_hello(bad));
      CHECK(!ranks::parse_welcome(bad, 2));
      CHECK(!ranks::parse_end(bad));
    }
    const std::string f = ranks::frame(ranks::FrameType::end, "abc");
    const auto bytes = std::as_bytes(std::span(f)).first<ranks::kHeaderBytes>();
    REQUIRE(ranks::parse_header(bytes));
    CHECK(ranks::parse_header(bytes)->bytes == 3);
    for (const size_t i : {0, 3, 7}) {
      std::string broken = f;
      broken[i] = '\x7f';
      CHECK(!ranks::parse_header(std::as_bytes(std::span(broken)).first<ranks::kHeaderBytes>()));
    }
  }
}
