"""GPUs: which kernels cuDNN, cuBLAS or the engine launch for a step, with their grids, resources and traffic."""

from iossim.base.registry import Places
from iossim.hardware.lowering.gpu.families.streaming import copy_candidate
from iossim.hardware.lowering.target import ByAlgorithm, Lower, Target

#: The function that lowers each kind of op, imported when a step of the kind is first lowered.
FAMILIES = Places[Lower](
    "iossim.hardware.lowering.gpu",
    {
        "attention:attention": "attention",
        "families.channels_last:convolution_nhwc": "conv_nhwc",
        "families.channels_last:maximum_nhwc": "max_pool_nhwc",
        "families.convolution:convolution": "conv",
        "cudnn_algorithms:gradient": "conv_backward_data conv_backward_filter",
        "families.matrix_product:matrix_product": "gemm matmul grouped_matmul",
        "families.matrix_product:stored_product": "integer_conv quantized_conv integer_matmul quantized_matmul "
        "scaled_conv scaled_matmul",
        "families.matrix_product:dequantised_product": "dequantized_matmul",
        "families.pooling:pooling": "max_pool average_pool average_pool_nhwc local_response_norm",
        "families.pooling:global_pooling": "global_average_pool global_max_pool global_average_pool_nhwc "
        "global_max_pool_nhwc",
        "families.pooling:pooling_backward": "max_pool_backward average_pool_backward",
        "families.matrix_product:recurrent": "lstm gru rnn",
        "families.reductions:reduction": "reduce",
        "families.reductions:selection": "arg_extreme cumsum top_k",
        "families.reductions:normalisation": "instance_norm group_norm dynamic_quantize",
        "families.reductions:row_normalisation": "layer_norm rms_norm",
        "families.streaming:elementwise": "add mul nary where cast prelu quantize dequantize batch_norm relu clip "
        "sigmoid unary",
        "families.streaming:moved_or_made": "concat identity reshape flatten",
        "families.streaming:copy": "slice split",
        "families.channels_last:transpose": "transpose",
        "families.reductions:softmax": "softmax log_softmax hardmax",
        "families.streaming:traffic": "foreign resize",
        "families.streaming:gathering": "pad expand tile depth_to_space space_to_depth gather gather_elements "
        "gather_nd gather_backward grid_sample",
        "convolution.backward:transposed_convolution": "conv_transpose",
    },
)
_ALGORITHMS = Places[ByAlgorithm](
    "iossim.hardware.lowering.gpu",
    {
        "cudnn_algorithms:forward": "conv",
        "cudnn_algorithms:of_data": "conv_backward_data",
        "cudnn_algorithms:of_filter": "conv_backward_filter",
    },
)
TARGET = Target(FAMILIES, copy_candidate, _ALGORITHMS)
