#include "ops/selection.h"

#include "ops/operation.h"

namespace tandem::ops {

void sign_project(const SignProjectParams& p, Range rows) { cpu_table().sign_project(p, rows); }
int hash_probe(const HashProbeParams& p) { return cpu_table().hash_probe(p); }
void rotate_rows(const RotateRowsParams& p, Range rows) { cpu_table().rotate_rows(p, rows); }
void rotate_rows_back(const RotateRowsParams& p, Range rows) {
  cpu_table().rotate_rows_back(p, rows);
}
void code_rows_of_page(const CodedRowsParams& p, Range rows) {
  cpu_table().code_rows_of_page(p, rows);
}
void widen_coded_rows(const WidenCodedRowsParams& p, Range rows) {
  cpu_table().widen_coded_rows(p, rows);
}
void prepare_coded_queries(const CodedQueriesParams& p, Range queries) {
  cpu_table().prepare_coded_queries(p, queries);
}
void attend_coded(const AttendCodedParams& p) { cpu_table().attend_coded(p); }
void code_scan(const CodeScanParams& p, Range keys) { cpu_table().code_scan(p, keys); }
void code_refine(const CodeRefineParams& p) { cpu_table().code_refine(p); }
void tail_masses(const TailMassesParams& p) { cpu_table().tail_masses(p); }
void cluster_masses(const ClusterMassesParams& p) { cpu_table().cluster_masses(p); }
void nearest_clusters(const NearestClustersParams& p) { cpu_table().nearest_clusters(p); }
void add_means(const AddMeansParams& p) { cpu_table().add_means(p); }
void chunk_means(const ChunkMeansParams& p) { cpu_table().chunk_means(p); }
void chunk_scores(const ChunkScoresParams& p) { cpu_table().chunk_scores(p); }
int select_top(const SelectTopParams& p) { return cpu_table().select_top(p); }
int select_reached(const SelectReachedParams& p) { return cpu_table().select_reached(p); }
void draw_exponentials(const DrawExponentialsParams& p, Range ids) {
  cpu_table().draw_exponentials(p, ids);
}
int sample_tail(const SampleTailParams& p) { return cpu_table().sample_tail(p); }
void attend_list(const AttendListParams& p) { cpu_table().attend_list(p); }
void key_votes(const KeyVotesParams& p) { cpu_table().key_votes(p); }

void hand_over_lists(const HandOverListsParams& p, Stream stream) {
  launch(TANDEM_KERNEL(hand_over_lists), p, stream);
}

void attend_lists(const AttendListsParams& p, Stream stream) {
  launch(TANDEM_KERNEL(attend_lists), p, stream);
}
void code_frames(const CodeFramesParams& p, Stream stream) {
  launch(TANDEM_KERNEL(code_frames), p, stream);
}
void code_keys(const CodeKeysParams& p, Stream stream) {
  launch(TANDEM_KERNEL(code_keys), p, stream);
}
void make_clusters(const MakeClustersParams& p, Stream stream) {
  launch(TANDEM_KERNEL(make_clusters), p, stream);
}
void assign_clusters(const AssignClustersParams& p, Stream stream) {
  launch(TANDEM_KERNEL(assign_clusters), p, stream);
}
void choose_coded(const ChooseCodedParams& p, Stream stream) {
  launch(TANDEM_KERNEL(choose_coded), p, stream);
}
void draw_tail(const DrawTailParams& p, Stream stream) {
  launch(TANDEM_KERNEL(draw_tail), p, stream);
}
void key_votes(const KeyVotesCudaParams& p, Stream stream) {
  launch(TANDEM_KERNEL(key_votes), p, stream);
}
void choose_keys(const ChooseKeysParams& p, Stream stream) {
  launch(TANDEM_KERNEL(choose_keys), p, stream);
}
void copy_keys(const CopyKeysParams& p, Stream stream) {
  TANDEM_OPERATION(copy_keys).run(p, p.n_kv_heads, int64_t{2} * p.n * p.row_bytes, stream);
}
void choose_scored(const ChooseScoredParams& p, Stream stream) {
  launch(TANDEM_KERNEL(choose_scored), p, stream);
}
void score_keys(const ScoreKeysParams& p, Stream stream) {
  launch(TANDEM_KERNEL(score_keys), p, stream);
}
void draw_keys(const DrawKeysParams& p, Stream stream) {
  launch(TANDEM_KERNEL(draw_keys), p, stream);
}
void page_bounds(const PageBoundsParams& p, Stream stream) {
  launch(TANDEM_KERNEL(page_bounds), p, stream);
}
void score_pages(const ScorePagesParams& p, Stream stream) {
  launch(TANDEM_KERNEL(score_pages), p, stream);
}
void chunk_means(const ChunkMeansCudaParams& p, Stream stream) {
  launch(TANDEM_KERNEL(chunk_means), p, stream);
}
void chunk_scores(const ChunkScoresCudaParams& p, Stream stream) {
  launch(TANDEM_KERNEL(chunk_scores), p, stream);
}
void choose_chunks(const ChooseChunksParams& p, Stream stream) {
  launch(TANDEM_KERNEL(choose_chunks), p, stream);
}
void mean_keys(const MeanKeysParams& p, Stream stream) {
  launch(TANDEM_KERNEL(mean_keys), p, stream);
}
void hash_keys(const HashKeysParams& p, Stream stream) {
  launch(TANDEM_KERNEL(hash_keys), p, stream);
}
void hash_append(const HashAppendCudaParams& p, Stream stream) {
  launch(TANDEM_KERNEL(hash_append), p, stream);
}
void hash_queries(const HashQueriesParams& p, Stream stream) {
  launch(TANDEM_KERNEL(hash_queries), p, stream);
}
void collide(const CollideParams& p, Stream stream) { launch(TANDEM_KERNEL(collide), p, stream); }
void select_top(const SelectTopCudaParams& p, Stream stream) {
  launch(TANDEM_KERNEL(select_top), p, stream);
}

}  // namespace tandem::ops
