#pragma once
#include <functional>
#include <optional>
#include <string>

namespace tandem::ranks {

/// Ranks of a run, at most.
inline constexpr int kMostRanks = 1024;

/// What a recipe says of ranks; what it leaves open comes from a launcher's variables.
struct Asked {
  std::optional<int> rank = {}, world_size = {};
  std::string rendezvous = {};  // empty: the launcher's
  double timeout_s = 60;
  /// Whether ranks meet: a plan needs no rendezvous, and is rank 0's where none is named.
  bool meets = true;
};

/// One process of a run.
struct Place {
  int rank = 0, size = 1;
  int local_rank = 0;      // among those of its machine, as far as known
  std::string rendezvous;  // `host:port`, or the path of a file; empty where size is 1
  double timeout_s = 60;
  std::string launcher = {};  // "mpirun", "srun", "torchrun"; empty: by hand

  bool alone() const { return size == 1; }
};

/// The value of an environment variable, or null.
using Environment = std::function<const char*(const char* name)>;

/// Where this process stands: by the recipe, else by the variables of Open MPI, MPICH,
/// Slurm (of a step: a batch script itself is none) and torchrun. Launchers that give no rendezvous
/// get one that all their processes find: of one machine a file in its folder for temporary files,
/// of Slurm's nodes a port of the first.
/// errors   kind recipe: a rank without a size, out of range, or no rendezvous; a launcher's
///          variables that are no numbers
Place find_place(const Asked& asked, const Environment& environment);

/// The first host of a list as Slurm writes it: `gpu[003-007,9],login` has gpu003.
std::string first_host(const std::string& list);

}  // namespace tandem::ranks
