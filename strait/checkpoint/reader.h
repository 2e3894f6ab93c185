// Reading a checkpoint back, in any layout.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "strait/checkpoint/files/safetensors.h"
#include "strait/checkpoint/manifest.h"

namespace strait::checkpoint {

/// A range that is wanted, and memory of its exact length in bytes, packed where it is not one
/// range.
struct LoadRequest {
  StateRange range;
  std::span<std::byte> destination;
};

/// An open checkpoint. A file's size and hash are checked once, before anything is taken from it.
/// Thread-safe: ranks that are threads may share one reader.
/// Errors: UserError naming the file for everything that is missing, cut off or changed, or
/// that holds a tensor which the manifest does not list.
class CheckpointReader {
 public:
  /// `path` is a checkpoint folder or a run folder (its newest checkpoint is taken).
  explicit CheckpointReader(const std::string& path);
  ~CheckpointReader();

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  /// Copies ranges from whichever shards hold them. The layout of the saving run does not matter.
  /// UserError when unit or state is unknown (the nearest is named), the range reaches beyond the
  /// unit, a part is in no file, or the dtype is another. On an error the destinations hold nothing
  /// of use. Cost: a file that was not checked yet is read once, whole, whatever is wanted of it:
  /// ask for all that is wanted at a time. Of others the ranges are read. A request costs O(n log
  /// n) besides for the n single runs of it and of the shards of its state.
  void load(const std::vector<LoadRequest>& requests) const;
  void load(const StateRange& range, std::span<std::byte> destination) const {
    load(std::vector<LoadRequest>{{range, destination}});
  }

  /// Whether anything of a state of a unit is stored.
  bool has_state(const std::string& unit, const std::string& state) const;
  /// Positions of the ranks whose residuals are stored under the unit, state and replica of a
  /// range, ascending; empty without the state.
  std::vector<int64_t> senders_of(const StateRange& range) const;
  /// What is stored of the sender of a range, as runs in no particular order.
  ElementRuns sent_by(const StateRange& range) const;

  /// Checks the hashes of every `ranks`-th file, from the `rank`-th on, that were not checked yet:
  /// after all ranks have loaded and called this, no file of the checkpoint is unchecked.
  void verify_share(int64_t rank, int64_t ranks) const;

  /// Contents of tokenizer.json, run.toml, ..., verified.
  std::string read_text(const std::string& name) const;
  /// Whether the checkpoint lists a file of that name.
  bool has_file(const std::string& name) const;

 private:
  struct VerifiedFile;
  struct Piece;
  using Pieces = std::map<std::string, std::vector<Piece>>;  // by file
  void add_pieces(const LoadRequest& request, Pieces& pieces) const;
  void load_file(const std::string& name, const std::vector<Piece>& pieces) const;
  void check_request(const StateRange& range) const;
  std::vector<const ShardRecord*> shards_of(const StateRange& range) const;
  const FileRecord& record(const std::string& name) const;

  std::string path_;
  Manifest manifest_;
  // Shards that are not empty by unit and state, in the order of their first elements.
  std::map<std::pair<std::string, std::string>, std::vector<const ShardRecord*>> shards_;
  std::map<std::string, std::unique_ptr<VerifiedFile>> files_;
};

/// What a rank holds of a residual: the position of the rank, and the elements.
struct SenderShare {
  int64_t sender = 0;
  ElementRuns runs;
};

/// Fills `destination` with a share `mine` of a residual (fp32), packed. `all`: what the ranks of
/// the run hold together, each element of a sender once. Where the senders are those that saved,
/// with the same elements, each gets its own. Else every sender gets, of each element, the sum of
/// what the old ones held divided by the number of new ones, so that nothing that was owed is lost.
/// Zeros for a checkpoint without the state. Errors as load. Cost: the runs of `all`; where senders
/// changed, a share of every old sender is read.
void load_residual(const CheckpointReader& reader, const StateRange& state, const SenderShare& mine,
                   const std::vector<SenderShare>& all, std::span<float> destination);

/// Size and hash of one listed file. `problem` is empty when both are right.
struct FileCheck {
  FileRecord file;
  std::string problem;
};

/// Checks every listed file of the checkpoint in `folder`; reads them all when `with_hashes`, else
/// only asks for their sizes.
std::vector<FileCheck> check_files(const Manifest& manifest, const std::string& folder,
                                   bool with_hashes);

/// The same, as UserError naming the first file that is wrong.
void verify_files(const Manifest& manifest, const std::string& folder, bool with_hashes);

/// parameter_hash of the master weights that the checkpoint holds. Reads them all.
std::string stored_parameter_hash(const CheckpointReader& reader);

}  // namespace strait::checkpoint
