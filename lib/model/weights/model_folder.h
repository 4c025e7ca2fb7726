#pragma once
#include <filesystem>
#include <string>

namespace tandem::model {

/// errors   kind input: the folder does not exist, or is a file (a GGUF file by name)
void require_model_folder(const std::filesystem::path& folder);

/// For a folder without usable weights: says which other format it holds and what to do.
/// errors   kind input if it holds GGUF or PyTorch pickle files; returns if it holds neither
void refuse_foreign_weights(const std::filesystem::path& folder);

/// Last component of the path: "a/b/" -> "b".
std::string folder_name(const std::filesystem::path& folder);

}  // namespace tandem::model
