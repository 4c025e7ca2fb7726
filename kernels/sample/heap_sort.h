#pragma once
// Heapsort for the bodies that rank tokens: no allocation, no recursion, n log n for any n. An
// entry type brings is_after(a, b), whether a comes after b.

namespace tandem {
namespace {

template <class Entry>
inline void sift_down(Entry* heap, int root, int n) {
  for (int child; (child = 2 * root + 1) < n; root = child) {
    if (child + 1 < n && is_after(heap[child + 1], heap[child])) ++child;
    if (!is_after(heap[child], heap[root])) return;
    const Entry moved = heap[root];
    heap[root] = heap[child];
    heap[child] = moved;
  }
}

template <class Entry>
inline void heap_sort(Entry* entries, int n) {
  for (int i = n / 2 - 1; i >= 0; --i) sift_down(entries, i, n);
  for (int left = n - 1; left > 0; --left) {
    const Entry last = entries[0];
    entries[0] = entries[left];
    entries[left] = last;
    sift_down(entries, 0, left);
  }
}

}  // namespace
}  // namespace tandem
