"""The lowering of op kinds on GPUs, one file per family, imported when a step of one of its kinds is first lowered."""

from iossim.base.registry import Places
from iossim.hardware.lowering.target import Lower

FAMILIES = Places[Lower](
    "iossim.hardware.lowering.gpu",
    {
        "attention:attention": "attention",
        "families.channels_last:convolution_nhwc": "conv_nhwc",
        "families.channels_last:pooling_nhwc": "max_pool_nhwc average_pool_nhwc",
        "families.channels_last:global_pooling_nhwc": "global_average_pool_nhwc global_max_pool_nhwc",
        "families.convolution:convolution": "conv",
        "cudnn_algorithms:gradient_of_data": "conv_backward_data",
        "cudnn_algorithms:gradient_of_filter": "conv_backward_filter",
        "families.matrix_product:matrix_product": "gemm matmul grouped_matmul",
        "families.matrix_product:stored_product": "integer_conv quantized_conv integer_matmul quantized_matmul "
        "scaled_conv scaled_matmul",
        "families.dequantised_product:dequantised_product": "dequantized_matmul",
        "families.pooling:pooling": "max_pool average_pool local_response_norm",
        "families.pooling:global_pooling": "global_average_pool global_max_pool",
        "families.pooling:pooling_backward": "max_pool_backward average_pool_backward",
        "families.matrix_product:recurrent": "lstm gru rnn",
        "families.reductions:reduction": "reduce arg_extreme cumsum",
        "families.reductions:normalisation": "instance_norm group_norm dynamic_quantize",
        "families.reductions:row_normalisation": "layer_norm rms_norm",
        "families.reductions:selection": "top_k",
        "families.streaming:elementwise": "add mul nary where cast prelu quantize dequantize batch_norm relu clip "
        "sigmoid unary",
        "families.streaming:concat_term": "concat",
        "families.streaming:copy": "slice split",
        "families.channels_last:transpose": "transpose",
        "families.streaming:view": "identity reshape flatten",
        "families.reductions:softmax": "softmax log_softmax hardmax",
        "families.streaming:resample": "resize",
        "families.streaming:traffic": "foreign",
        "families.streaming:move": "pad expand tile depth_to_space space_to_depth",
        "families.streaming:pick": "gather gather_elements gather_nd gather_backward grid_sample",
        "families.transposed_convolution:transposed_convolution": "conv_transpose",
    },
)
