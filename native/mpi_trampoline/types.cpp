#include "mpi_trampoline/types.h"

#include "capi/slipstream.h"
#include "mpi_trampoline/error.h"

namespace slipstream::mpi {
namespace {

template <class T>
constexpr int32_t integer() {
  constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(0);
  switch (sizeof(T)) {
    case 1:
      return is_signed ? SLIPSTREAM_I8 : SLIPSTREAM_U8;
    case 2:
      return is_signed ? SLIPSTREAM_I16 : SLIPSTREAM_U16;
    case 4:
      return is_signed ? SLIPSTREAM_I32 : SLIPSTREAM_U32;
    default:
      return is_signed ? SLIPSTREAM_I64 : SLIPSTREAM_U64;
  }
}

template <class T>
constexpr Type of_integer() {
  return {integer<T>(), sizeof(T)};
}

}  // namespace

Type type_of(Handle handle) noexcept {
  switch (handle) {
    case MPI_BYTE:
    case MPI_PACKED:
    case MPI_UINT8_T:
    case MPI_UNSIGNED_CHAR:
      return {SLIPSTREAM_U8, 1};
    case MPI_CHAR:
    case MPI_CHARACTER:
    case MPI_SIGNED_CHAR:
    case MPI_INT8_T:
    case MPI_INTEGER1:
      return {SLIPSTREAM_I8, 1};
    case MPI_SHORT:
    case MPI_INT16_T:
    case MPI_INTEGER2:
      return of_integer<int16_t>();
    case MPI_UNSIGNED_SHORT:
    case MPI_UINT16_T:
      return of_integer<uint16_t>();
    case MPI_INT:
    case MPI_INT32_T:
    case MPI_INTEGER:
    case MPI_INTEGER4:
      return of_integer<int32_t>();
    case MPI_UNSIGNED:
    case MPI_UINT32_T:
      return of_integer<uint32_t>();
    case MPI_LONG:
      return of_integer<long>();
    case MPI_UNSIGNED_LONG:
      return of_integer<unsigned long>();
    case MPI_LONG_LONG:
    case MPI_LONG_LONG_INT:
    case MPI_INT64_T:
    case MPI_INTEGER8:
    case MPI_AINT:
    case MPI_COUNT:
    case MPI_OFFSET:
      return of_integer<int64_t>();
    case MPI_UNSIGNED_LONG_LONG:
    case MPI_UINT64_T:
      return of_integer<uint64_t>();
    case MPI_FLOAT:
    case MPI_REAL:
    case MPI_REAL4:
      return {SLIPSTREAM_F32, 4};
    case MPI_DOUBLE:
    case MPI_DOUBLE_PRECISION:
    case MPI_REAL8:
      return {SLIPSTREAM_F64, 8};
    case MPI_C_BOOL:
    case MPI_CXX_BOOL:
      return {SLIPSTREAM_BOOL, 1};
    case MPI_C_COMPLEX:
    case MPI_C_FLOAT_COMPLEX:
    case MPI_CXX_FLOAT_COMPLEX:
    case MPI_COMPLEX:
    case MPI_COMPLEX8:
      return {SLIPSTREAM_C64, 8};
    case MPI_C_DOUBLE_COMPLEX:
    case MPI_CXX_DOUBLE_COMPLEX:
    case MPI_DOUBLE_COMPLEX:
    case MPI_COMPLEX16:
      return {SLIPSTREAM_C128, 16};
    default:
      return {};
  }
}

int32_t op_of(Handle op, int32_t dtype) noexcept {
  const bool boolean = dtype == SLIPSTREAM_BOOL;
  switch (op) {
    case MPI_SUM:
      return SLIPSTREAM_SUM;
    case MPI_PROD:
      return SLIPSTREAM_PROD;
    case MPI_MIN:
      return SLIPSTREAM_MIN;
    case MPI_MAX:
      return SLIPSTREAM_MAX;
    case MPI_BAND:
      return SLIPSTREAM_BAND;
    case MPI_BOR:
      return SLIPSTREAM_BOR;
    case MPI_BXOR:
      return SLIPSTREAM_BXOR;
    case MPI_LAND:
      return boolean ? SLIPSTREAM_BAND : -1;
    case MPI_LOR:
      return boolean ? SLIPSTREAM_BOR : -1;
    case MPI_LXOR:
      return boolean ? SLIPSTREAM_BXOR : -1;
    default:
      return -1;
  }
}

std::string constant_name(Handle handle) {
  switch (handle) {
#define HANDLE(name, value) \
  case value:               \
    return "MPI_" #name;
#define INTEGER(name, value)
#define OFFSET(name, value)
#define ADDRESS(name, value)
#include "mpi_trampoline/constants.def"
    default:
      return "an unknown one";
  }
}

}  // namespace slipstream::mpi

SLIPSTREAM_MPI_EXPORT int MPIABI_Type_size(slipstream::mpi::Handle type, int* size) {
  using namespace slipstream::mpi;
  *size = static_cast<int>(type_of(type).bytes);
  return *size ? MPI_SUCCESS : fail(MPI_ERR_TYPE, "MPI_Type_size: no type for slipstream: " + constant_name(type));
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Type_get_extent(slipstream::mpi::Handle type, intptr_t* lower, intptr_t* extent) {
  int size = 0;
  const int code = MPIABI_Type_size(type, &size);
  *lower = 0;
  *extent = size;
  return code;
}
