#pragma once
#include "kernels/code/choose_coded.h"
#include "kernels/code/code.h"
#include "kernels/code/draw_tail.h"
#include "kernels/code/key_ranks.h"
#include "kernels/code/tail_means.h"
#include "kernels/code/value_clusters.h"
#include "kernels/gather/attend_list.h"
#include "kernels/gather/attend_lists.h"
#include "kernels/gather/choose_keys_cuda.h"
#include "kernels/gather/copy_keys.h"
#include "kernels/gather/draw_keys.h"
#include "kernels/gather/hand_over_lists.h"
#include "kernels/gather/key_votes.h"
#include "kernels/gather/page_bounds.h"
#include "kernels/gather/score_keys.h"
#include "kernels/lowbit/coded_pages.h"
#include "kernels/lsh/hash_tables.h"
#include "kernels/lsh/lsh_cuda.h"
#include "kernels/lsh/sign_project.h"
#include "kernels/selection/chunks.h"
#include "kernels/selection/chunks_cuda.h"
#include "kernels/selection/sample_tail.h"
#include "kernels/selection/select_top.h"
#include "kernels/selection/select_top_cuda.h"

/// Operations of policies that select keys by content; the headers above define them. Those without
/// a stream run on the CPU and on the calling thread, since policies divide their work by sequence
/// and head.
namespace tandem::ops {

void sign_project(const SignProjectParams& params, Range rows);
int hash_probe(const HashProbeParams& params);
void rotate_rows(const RotateRowsParams& params, Range rows);
void rotate_rows_back(const RotateRowsParams& params, Range rows);
void code_rows_of_page(const CodedRowsParams& params, Range rows);
void widen_coded_rows(const WidenCodedRowsParams& params, Range rows);
void prepare_coded_queries(const CodedQueriesParams& params, Range queries);
void attend_coded(const AttendCodedParams& params);
void code_scan(const CodeScanParams& params, Range keys);
void code_refine(const CodeRefineParams& params);
void tail_masses(const TailMassesParams& params);
void cluster_masses(const ClusterMassesParams& params);
void nearest_clusters(const NearestClustersParams& params);
void add_means(const AddMeansParams& params);
void chunk_means(const ChunkMeansParams& params);
void chunk_scores(const ChunkScoresParams& params);
int select_top(const SelectTopParams& params);
int select_reached(const SelectReachedParams& params);
void draw_exponentials(const DrawExponentialsParams& params, Range ids);
int sample_tail(const SampleTailParams& params);
void attend_list(const AttendListParams& params);
void key_votes(const KeyVotesParams& params);
/// On all of the CPU's threads where the stream is null.
void copy_keys(const CopyKeysParams& params, Stream stream);
/// errors   of these: kind device in a build without CUDA
void attend_lists(const AttendListsParams& params, Stream stream);
void hand_over_lists(const HandOverListsParams& params, Stream stream);
void code_frames(const CodeFramesParams& params, Stream stream);
void code_keys(const CodeKeysParams& params, Stream stream);
void make_clusters(const MakeClustersParams& params, Stream stream);
void assign_clusters(const AssignClustersParams& params, Stream stream);
void choose_coded(const ChooseCodedParams& params, Stream stream);
void draw_tail(const DrawTailParams& params, Stream stream);
void key_votes(const KeyVotesCudaParams& params, Stream stream);
void choose_keys(const ChooseKeysParams& params, Stream stream);
void choose_scored(const ChooseScoredParams& params, Stream stream);
void score_keys(const ScoreKeysParams& params, Stream stream);
void select_top(const SelectTopCudaParams& params, Stream stream);
void draw_keys(const DrawKeysParams& params, Stream stream);
void page_bounds(const PageBoundsParams& params, Stream stream);
void score_pages(const ScorePagesParams& params, Stream stream);
void chunk_means(const ChunkMeansCudaParams& params, Stream stream);
void chunk_scores(const ChunkScoresCudaParams& params, Stream stream);
void choose_chunks(const ChooseChunksParams& params, Stream stream);
void mean_keys(const MeanKeysParams& params, Stream stream);
void hash_keys(const HashKeysParams& params, Stream stream);
void hash_append(const HashAppendCudaParams& params, Stream stream);
void hash_queries(const HashQueriesParams& params, Stream stream);
void collide(const CollideParams& params, Stream stream);

}  // namespace tandem::ops
