// SPDX-License-Identifier: Apache-2.0
#include "text/bpe.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "text/byte_alphabet.h"

namespace sluice::text {

Bpe::Bpe(const TokenizerData& data) : fuse_unk_(data.fuse_unk) {
  std::unordered_map<std::string_view, int32_t> ids;
  ids.reserve(data.vocab.size());
  for (const auto& [token, id] : data.vocab) ids[token] = static_cast<int32_t>(id);
  const auto find = [&](std::string_view token) {
    const auto it = ids.find(token);
    return it == ids.end() ? -1 : it->second;
  };

  for (size_t b = 0; b < 256; ++b) byte_ids_[b] = find(byte_alphabet_utf8()[b]);
  if (!data.unk_token.empty()) {
    unk_id_ = find(data.unk_token);
    check_file(unk_id_ >= 0, "{}: the unknown token \"{}\" is not in the vocabulary", data.source, data.unk_token);
  }

  merges_.reserve(data.merges.size());
  for (size_t rank = 0; rank < data.merges.size(); ++rank) {
    const auto& [left, right] = data.merges[rank];
    const std::string both = left + right;
    for (const std::string* token : {&left, &right, &both})
      check_file(find(*token) >= 0,
                 "{}: merge {} (\"{}\" \"{}\") needs the token \"{}\", which is not in the vocabulary", data.source,
                 rank, left, right, *token);
    merges_[key(find(left), find(right))] = {static_cast<uint32_t>(rank), find(both)};
  }

  if (data.ignore_merges)
    for (const auto& [token, id] : data.vocab)
      if (const auto bytes = from_byte_alphabet(token)) pieces_[*bytes] = static_cast<int32_t>(id);
}

std::vector<Bpe::Symbol> Bpe::symbols_of(std::string_view piece) const {
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  bool after_unknown = false;
  for (const char c : piece) {
    int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    const bool unknown = id < 0;
    if (unknown) {
      if (unk_id_ < 0 || (fuse_unk_ && after_unknown)) continue;
      id = unk_id_;
    }
    after_unknown = unknown;
    const auto at = static_cast<uint32_t>(symbols.size());
    symbols.push_back({id, at == 0 ? kNone : at - 1, at + 1, true});
  }
  if (!symbols.empty()) symbols.back().next = kNone;
  return symbols;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (!pieces_.empty()) {
    if (const auto it = pieces_.find(std::string(piece)); it != pieces_.end()) {
      ids.push_back(it->second);
      return;
    }
  }
  check(piece.size() < kNone, "a word of {} bytes cannot be encoded; a word may have up to {}", piece.size(),
        kNone - 1);

  struct Candidate {
    uint32_t rank, at;
    int32_t id;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  std::vector<Symbol> symbols = symbols_of(piece);
  const auto candidate = [&](uint32_t left, std::vector<Candidate>& out) {
    const auto it = merges_.find(key(symbols[left].id, symbols[symbols[left].next].id));
    if (it != merges_.end()) out.push_back({it->second.rank, left, it->second.id});
  };

  std::vector<Candidate> heap;  // the lowest rank first, from the left
  heap.reserve(symbols.size());
  for (uint32_t i = 0; i + 1 < symbols.size(); ++i) candidate(i, heap);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](uint32_t left) {
    const size_t before = heap.size();
    candidate(left, heap);
    if (heap.size() != before) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[best.at];
    if (!left.alive || left.next == kNone) continue;
    // The pair may have become another one since it was queued.
    const auto it = merges_.find(key(left.id, symbols[left.next].id));
    if (it == merges_.end() || it->second.id != best.id) continue;
    Symbol& right = symbols[left.next];
    left.id = best.id;
    left.next = right.next;
    right.alive = false;
    if (left.next != kNone) symbols[left.next].previous = best.at;
    if (left.previous != kNone) push(left.previous);
    if (left.next != kNone) push(best.at);
  }
  if (symbols.empty()) return;
  for (uint32_t i = 0; i != kNone; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace sluice::text
