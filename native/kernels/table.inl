// The table of all kernels of a level. Part of level.inl.

template <class T>
constexpr void fill_integer(Table& table, DType t) {
  table.scale[static_cast<int>(t)] = scale_integer<T>;
  table.divide[static_cast<int>(t)] = divide_integer<T>;
}

template <class F>
constexpr void fill_format(Table& table, DType t) {
  table.unpack[static_cast<int>(t)] = unpack_narrow<F>;
  table.pack[static_cast<int>(t)] = pack_narrow<F>;
  table.scale[static_cast<int>(t)] = scale_narrow<F>;
  table.divide[static_cast<int>(t)] = divide_narrow<F>;
}

constexpr Table make_table() {
  Table table{};
  fill_reductions(table);
  table.unpack[static_cast<int>(DType::f64)] = unpack_f64;
  table.pack[static_cast<int>(DType::f64)] = pack_f64;
  table.unpack[static_cast<int>(DType::f32)] = unpack_f32;
  table.pack[static_cast<int>(DType::f32)] = pack_f32;
  table.round_f64 = round_f64;
  table.scale[static_cast<int>(DType::f64)] = scale_f64<1>;
  table.scale[static_cast<int>(DType::c128)] = scale_f64<2>;
  table.scale[static_cast<int>(DType::f32)] = scale_f32<1>;
  table.scale[static_cast<int>(DType::c64)] = scale_f32<2>;
  table.scale[static_cast<int>(DType::boolean)] = scale_bool;
  table.divide[static_cast<int>(DType::f64)] = divide_float<double, 1>;
  table.divide[static_cast<int>(DType::c128)] = divide_float<double, 2>;
  table.divide[static_cast<int>(DType::f32)] = divide_float<float, 1>;
  table.divide[static_cast<int>(DType::c64)] = divide_float<float, 2>;
  table.divide[static_cast<int>(DType::boolean)] = divide_bool;
  fill_format<F16>(table, DType::f16);
  fill_format<BF16>(table, DType::bf16);
  fill_format<F8E4M3>(table, DType::f8e4m3);
  fill_format<F8E5M2>(table, DType::f8e5m2);
  fill_integer<int8_t>(table, DType::i8);
  fill_integer<int16_t>(table, DType::i16);
  fill_integer<int32_t>(table, DType::i32);
  fill_integer<int64_t>(table, DType::i64);
  fill_integer<uint8_t>(table, DType::u8);
  fill_integer<uint16_t>(table, DType::u16);
  fill_integer<uint32_t>(table, DType::u32);
  fill_integer<uint64_t>(table, DType::u64);
  fill_blocks(table);
  fill_wires(table);
  table.copy_past_cache = copy_past_cache;
  return table;
}
