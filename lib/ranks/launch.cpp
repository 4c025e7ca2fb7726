#include "ranks/launch.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace tandem::ranks {
namespace {

int number_of(const Environment& environment, const char* name) {
  const char* const text = environment(name);
  int n = 0;
  const char* const end = text + std::strlen(text);
  const auto [last, code] = std::from_chars(text, end, n);
  if (code != std::errc{} || last != end || n < 0)
    throw recipe_error(name, "expected a number, found '{}'", text)
        .hint(
            "the launcher sets this variable: start without a launcher, and set run.rank and "
            "run.world_size");
  return n;
}

struct Launcher {
  const char *name, *rank, *size, *local_rank;
  const char* job;  // differs between its runs
};

// srun sets the size of a step for its processes alone, which a batch script is not.
constexpr Launcher kLaunchers[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "PMIX_NAMESPACE"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_ID"},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_JOBID"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"}};

const Launcher* find_launcher(const Environment& environment) {
  for (const Launcher& l : kLaunchers)
    if (environment(l.rank) != nullptr && environment(l.size) != nullptr) return &l;
  return nullptr;
}

/// A name in a file's name.
std::string tame(const char* text) {
  std::string name;
  for (; *text != '\0'; ++text)
    name += std::isalnum(static_cast<unsigned char>(*text)) != 0 ? *text : '-';
  return name;
}

std::string rendezvous_of(const Launcher& l, const Environment& environment) {
  if (const char* const host = environment("MASTER_ADDR"); host != nullptr)
    if (const char* const port = environment("MASTER_PORT"); port != nullptr)
      return fmt::format("{}:{}", host, port);
  if (const char* const nodes = environment("SLURM_STEP_NODELIST");
      nodes != nullptr && environment("SLURM_JOB_ID") != nullptr) {
    constexpr int kFirstPort = 20'000, kPorts = 10'000;
    const int job = number_of(environment, "SLURM_JOB_ID");
    const int step = environment(l.job) != nullptr ? number_of(environment, l.job) : 0;
    return fmt::format("{}:{}", first_host(nodes), kFirstPort + (job + step) % kPorts);
  }
  const char* const here = environment("OMPI_COMM_WORLD_LOCAL_SIZE");
  const bool one_machine = here != nullptr && std::strcmp(here, environment(l.size)) == 0;
  const char* const job = environment(l.job);
  if (!one_machine || job == nullptr) return {};
  return (std::filesystem::temp_directory_path() / fmt::format("tandem-ranks-{}", tame(job)))
      .string();
}

/// A process that srun counts, and that does not know among how many, would do alone what others do
/// too. A batch script is process 0 of its job.
void refuse_uncounted(const Environment& environment) {
  for (const Launcher& l : kLaunchers)
    if (std::strcmp(l.name, "srun") == 0 && environment(l.rank) != nullptr &&
        number_of(environment, l.rank) > 0)
      throw recipe_error(l.rank,
                         "is {}, but {} is not set: this process would run as the only rank",
                         environment(l.rank), l.size)
          .hint(fmt::format(
              "start the ranks with srun, set run.rank and run.world_size, or unset {}", l.rank));
}

}  // namespace

std::string first_host(const std::string& list) {
  const size_t bracket = list.find_first_of("[,");
  if (bracket == std::string::npos || list[bracket] == ',') return list.substr(0, bracket);
  const size_t end = list.find_first_of(",-]", bracket);
  if (end == std::string::npos) return list;
  const size_t close = list.find(']', bracket);
  const size_t after = list.find(',', close);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) +
         (close == std::string::npos ? "" : list.substr(close + 1, after - close - 1));
}

Place find_place(const Asked& asked, const Environment& environment) {
  Place p{.rendezvous = asked.rendezvous, .timeout_s = asked.timeout_s};
  const Launcher* const l = find_launcher(environment);
  if (l == nullptr && !asked.rank && !asked.world_size) refuse_uncounted(environment);
  const bool is_half = asked.rank.has_value() != asked.world_size.has_value() && l == nullptr;
  if (is_half && (asked.meets || asked.rank))
    throw recipe_error(asked.rank ? "run.world_size" : "run.rank",
                       "is not set, but {} is, and no launcher has set it",
                       asked.rank ? "run.rank" : "run.world_size")
        .hint("set both or neither, or start the ranks with mpirun, srun or torchrun");
  if (l != nullptr) {
    p.launcher = l->name;
    p.rank = number_of(environment, l->rank);
    p.size = number_of(environment, l->size);
  }
  p.rank = p.local_rank = asked.rank.value_or(p.rank);
  p.size = asked.world_size.value_or(p.size);
  if (l != nullptr && environment(l->local_rank) != nullptr)
    p.local_rank = number_of(environment, l->local_rank);
  if (p.size < 1 || p.rank >= p.size)
    throw recipe_error("run.rank", "is {}, expected 0 to {} for {} ranks", p.rank, p.size - 1,
                       p.size);
  if (p.size > kMostRanks)
    throw recipe_error("run.world_size", "is {}, expected at most {} ranks", p.size, kMostRanks);
  if (p.alone() || !p.rendezvous.empty() || !asked.meets) return p;
  if (l != nullptr) p.rendezvous = rendezvous_of(*l, environment);
  if (p.rendezvous.empty())
    throw recipe_error(
        "run.rendezvous", "is not set, and {}",
        l != nullptr ? std::string(l->name) + " does not set it" : "several ranks need it")
        .hint("set it to host:port, where rank 0 listens, or to a file that all ranks can access");
  return p;
}

}  // namespace tandem::ranks
